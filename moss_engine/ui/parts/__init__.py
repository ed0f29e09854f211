"""The parts of the page: head, composer, settings, and what they say."""
