"""What stands in a written text for the eye alone -> plain text."""
