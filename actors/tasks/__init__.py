"""Looks after the life of tasks where no worker does: time-outs, cancellations, lost workers, callbacks, listing."""
