"""How much work one document may cause.

An invoice comes from strangers. Every number here bounds bytes, pages or elements before they are worked
on, so that a hostile document costs a known amount of time and memory. Each stands well above what real
invoices need: the public corpora hold none over 2 MB, 20 pages or 1,000 lines.
"""

from typing import Final

MAX_DOCUMENT_BYTES: Final = 20 * 1024 * 1024
MAX_XML_BYTES: Final = 8 * 1024 * 1024
MAX_XML_ELEMENTS: Final = 200_000
MAX_LINES: Final = 10_000
MAX_FIELD_CHARS: Final = 2_000

MAX_ATTACHMENTS: Final = 20
MAX_TEXT_PAGES: Final = 30
MAX_PAGE_CONTENT_BYTES: Final = 1024 * 1024
MAX_TOTAL_CONTENT_BYTES: Final = 2 * 1024 * 1024
MAX_PAGE_OPERATIONS: Final = 200_000
MAX_ROW_CHARS: Final = 300
MAX_ROWS: Final = 2_500
MAX_TEXT_CHARS: Final = 120_000  # blanks not counted
# A line of an invoice has fewer figures, and a document fewer candidates for its total; past these, none is sought.
MAX_FIGURES_IN_ROW: Final = 12
MAX_SUM_CANDIDATES: Final = 16

# A PDF ends in `%%EOF`; some writers append a few bytes after it.
PDF_TAIL_BYTES: Final = 2_048
# Where `%PDF-` may stand: readers accept up to 1,024 bytes of other data before it.
PDF_HEAD_BYTES: Final = 1_024
