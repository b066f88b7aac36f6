"""One HTML file that shows an audit, or a finished run, to whoever decides what to do about it."""

from mlt_jax.report.audit_page import audit_page
from mlt_jax.report.run_page import run_page

__all__ = ["audit_page", "run_page"]
