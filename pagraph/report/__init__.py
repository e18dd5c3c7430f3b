"""Reports of a profile: an HTML page, charts by matplotlib, and sentences."""

from .page import html_page
from .plot import save_plot

__all__ = ["html_page", "save_plot"]

__dir__ = __all__.copy
