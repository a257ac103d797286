"""Words of the page: what each metric and fault means, in a sentence; the definitions are in `metrics.py`."""

from __future__ import annotations

from plansmith.eval.metrics import FirstFault

DECISIVE = "equivalent"
"""The metric that says whether an answer is right."""
LOWER_IS_BETTER = frozenset({"repaired", "abstained_wrong"})

MEANING = {
    "parsed": "strict JSON and an array",
    "repaired": "not strict JSON, but a lenient reader can repair it; counts as a miss in every other metric",
    "registered": "every step names a worker of the catalog",
    "valid": "the checker finds no error",
    "exact": "the canonical text equals a reference's",
    "equivalent": "equal to a reference up to the order of independent steps",
    "dag_isomorphic": "worker names and dependency edges equal a reference's, arguments aside",
    "nestful_full_match": "every call equals the reference's in order, as NESTFUL defines it",
    "nestful_partial_match": "share of the reference's calls that are found, as NESTFUL defines it",
    "nestful_f1_functions": "F1 of function names, as NESTFUL defines it",
    "nestful_f1_parameters": "F1 of parameters, as NESTFUL defines it",
    "bfcl_ast": "BFCL's rule with lists of allowed values, calls matched optimally",
    "bfcl_ast_greedy": "BFCL's rule as published, calls matched greedily",
    "abstained_right": "an empty plan where no worker fits",
    "abstained_wrong": "an empty plan where a worker fits",
    "grounded": "every literal argument is in the query, in the worker's schema, or derivable",
    "executed": "runs to the end against recorded results",
    "answer_match": "the last results equal those of the reference plan",
    "worker_f1": "micro F1 of worker names",
    "argument_f1": "micro F1 of (worker, parameter, value) within aligned steps",
}

FAULTS = {
    FirstFault.RIGHT: "equivalent to a reference",
    FirstFault.UNPARSEABLE: "no answer, or text that is no JSON array",
    FirstFault.UNREGISTERED: "a step's worker is absent or not in the catalog",
    FirstFault.ARGUMENTS: "an argument breaks its schema or is not the reference's",
    FirstFault.REFERENCES: "what references and `after` point to is wrong or not the reference's",
    FirstFault.WRONG_WORKER: "a worker of the reference is missing and another one is there",
    FirstFault.MISSING_STEP: "all that is wrong is that steps of the reference are missing",
    FirstFault.EXTRA_STEP: "steps beyond those of the reference, or more than a plan may have",
}
"""In the order in which the page shows them."""
