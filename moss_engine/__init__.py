"""Real-time engine for MOSS-Speech: paged-KV runtimes, streaming codec, service and page.

Importing the package does nothing; README.md beside this file says what lives where.
"""

__version__ = "0.1.0"
