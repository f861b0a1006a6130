"""Writes the sample documents: what they say (`data`), the XML formats, and the pages.

It shares nothing with the reader, so that neither can hide the other's mistakes: CII is written by drafthorse, pages by
fpdf2, and one hybrid is joined by the factur-x library.
"""
