"""The report: one HTML file and one JSON object that say what the traffic shows, and what not.

`charts` draws, `page` lays out, `scorecard` names and defines the figures, `build` gathers them.
"""
