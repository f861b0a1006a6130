"""Invoices for the demonstration: a reader for the formats in use, and sample documents made here."""
