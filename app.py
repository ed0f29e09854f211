"""MOSS-Speech Live: the page. `python app.py --help` lists the options."""

from moss_engine.serve import run

if __name__ == "__main__":
    run()
