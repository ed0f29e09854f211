"""Real-time engine for MOSS-Speech: paged-KV runtimes, streaming codec, service and page.

Importing the package does nothing; see the README's tree for what lives where.
"""

__version__ = "0.1.0"
