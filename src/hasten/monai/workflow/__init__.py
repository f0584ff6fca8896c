"""MONAI's trainer and evaluator with Hasten's step: same arguments, events and state, at a fraction of the cost."""

from hasten.monai.smart import SmartCacheHandler
from hasten.monai.workflow.evaluator import SupervisedEvaluator
from hasten.monai.workflow.trainer import SupervisedTrainer

__all__ = ["SmartCacheHandler", "SupervisedEvaluator", "SupervisedTrainer"]
