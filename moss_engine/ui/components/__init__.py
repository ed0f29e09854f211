"""Components of the page: Python, JavaScript and CSS side by side."""
