"""MOSS-Speech Live: the page. `python app.py --help` lists the options."""

from moss_engine.programs import page

if __name__ == "__main__":
    page()
