"""MONAI's trainer and evaluator with Hasten's step: same arguments, events and state, at a fraction of the cost."""

from hasten.engine.workflow.evaluator import SupervisedEvaluator
from hasten.engine.workflow.handlers import AsyncValidationHandler, SmartCacheHandler
from hasten.engine.workflow.trainer import SupervisedTrainer

__all__ = ["AsyncValidationHandler", "SmartCacheHandler", "SupervisedEvaluator", "SupervisedTrainer"]
