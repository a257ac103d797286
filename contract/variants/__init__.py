"""Variants of a catalog with plans kept right: other order, other names, more workers, fewer workers.

Pure and seeded: the same catalog, settings and seed give the same variant on every machine. Used by evaluation (does a
planner read the catalog, or remember it?) and by data augmentation.
"""

from plansmith.contract.variants.base import Names, Variant
from plansmith.contract.variants.changes import shuffled, with_distractors, without
from plansmith.contract.variants.confusable import Twist, confusable
from plansmith.contract.variants.naming import NameStyle
from plansmith.contract.variants.renamed import Descriptions, renamed

__all__ = [
    "Descriptions",
    "NameStyle",
    "Names",
    "Twist",
    "Variant",
    "confusable",
    "renamed",
    "shuffled",
    "with_distractors",
    "without",
]
