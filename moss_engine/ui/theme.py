"""Gradio's theme, expressed in the page's own CSS variables (page.css), which hold the light and
the dark palette."""

from __future__ import annotations

import gradio as gr

SANS = ["system-ui", "Liberation Sans", "Helvetica Neue", "Arial", "sans-serif"]
MONO = ["ui-monospace", "Menlo", "Consolas", "Liberation Mono", "monospace"]

BOTH = {
    "body_background_fill": "var(--paper)",
    "body_text_color": "var(--ink)",
    "body_text_color_subdued": "var(--quiet)",
    "background_fill_primary": "var(--card)",
    "background_fill_secondary": "var(--paper)",
    "block_background_fill": "transparent",
    "block_border_color": "var(--line)",
    "block_label_background_fill": "transparent",
    "block_label_text_color": "var(--quiet)",
    "block_title_text_color": "var(--quiet)",
    "block_info_text_color": "var(--quiet)",
    "border_color_primary": "var(--line)",
    "color_accent_soft": "var(--moss-soft)",
    "input_background_fill": "var(--field)",
    "input_border_color": "var(--line)",
    "input_border_color_focus": "var(--moss)",
    "input_placeholder_color": "var(--quiet)",
    "slider_color": "var(--moss)",
    "button_primary_background_fill": "var(--moss)",
    "button_primary_background_fill_hover": "var(--moss-strong)",
    "button_primary_text_color": "var(--on-moss)",
    "button_primary_border_color": "transparent",
    "button_secondary_background_fill": "var(--field)",
    "button_secondary_background_fill_hover": "var(--moss-soft)",
    "button_secondary_text_color": "var(--ink)",
    "button_secondary_border_color": "var(--line)",
    "checkbox_label_background_fill": "transparent",
    "checkbox_label_text_color": "var(--ink)",
    "checkbox_background_color": "var(--field)",
    "checkbox_background_color_selected": "var(--moss)",
    "checkbox_border_color": "var(--line)",
    "link_text_color": "var(--moss)",
}
ONCE = {
    "block_border_width": "0px",
    "block_radius": "12px",
    "block_shadow": "none",
    "block_padding": "0px",
    "button_large_radius": "12px",
    "button_small_radius": "10px",
    "input_radius": "12px",
    "input_shadow": "none",
    "input_shadow_focus": "0 0 0 3px var(--moss-soft)",
    "layout_gap": "16px",
    "form_gap_width": "0px",
}


def make_theme() -> gr.themes.Base:
    """A theme that loads no font and no file from anywhere."""
    theme = gr.themes.Base(font=SANS, font_mono=MONO)
    return theme.set(**ONCE, **BOTH, **{f"{name}_dark": value for name, value in BOTH.items()})
