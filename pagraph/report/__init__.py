"""Reports of a profile: an HTML page, a matplotlib chart, sentences; draws results, measures
nothing."""

from .page import html_page
from .plot import save_plot

__all__ = ["html_page", "save_plot"]

__dir__ = __all__.copy
