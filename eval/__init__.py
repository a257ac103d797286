"""Evaluation: metrics, statistics, reports."""
