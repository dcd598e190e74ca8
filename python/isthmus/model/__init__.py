"""Cost model: curves fitted to records, formulas for the network, and plans for several nodes.

The functions are pure and need only numpy. docs/internals/cost_model.md describes the model and its error.
"""
