"""The demonstration: three instances of one agent read invoices, and one of them dies on the way (`make demo`)."""
