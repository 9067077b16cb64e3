"""Passes over the IR: checks that report findings, and analyses and rewrites that the plan is made from."""
