"""Tools of the small talk: what a clock, a calculator and a memory know, as sentences."""
