"""What asking a service has cost, and whether one more request is within the limits.

A request is let through only where it would fit if it cost as much as the others did on average, those under way
included. So a limit is not passed by much, however many requests are under way; before the first answer nothing is
known, and as many requests as may be under way are let through.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from plansmith.contract.errors import PlansmithError
from plansmith.data.teacher_config import Budget


class BudgetReachedError(PlansmithError):
    """A limit was reached with work left; everything so far is kept (exit code 1)."""

    exit_code = 1


@dataclass(slots=True)
class Spent:
    """What was asked and used."""

    requests: int = 0
    """Calls, failed ones included."""
    prompt_tokens: int = 0
    completion_tokens: int = 0

    @property
    def tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens


class Purse:
    """Counts what is spent against a budget; for one event loop."""

    def __init__(self, budget: Budget, spent: Spent | None = None, *, retries: Callable[[], int] = lambda: 0) -> None:
        """Begin.

        Args:
            budget: the limits.
            spent: what was spent before.
            retries: how many requests were repeated so far, where the service's client counts them.

        """
        self.budget = budget
        self.spent = spent or Spent()
        self.reached: str | None = None
        """The limit that was reached, in words."""
        self._retries = retries
        self._answers = 0
        self._begun = Spent(prompt_tokens=self.spent.prompt_tokens, completion_tokens=self.spent.completion_tokens)
        self._under_way = 0

    @property
    def under_way(self) -> int:
        return self._under_way

    @property
    def money(self) -> float:
        """What the tokens cost so far."""
        return self._price(self.spent.prompt_tokens, self.spent.completion_tokens)

    @property
    def cost(self) -> str:
        """Money as people read it; empty where no price is given."""
        priced = self.budget.price_prompt is not None or self.budget.price_completion is not None
        return f"{self.money:.2f} {self.budget.currency}" if priced else ""

    def take(self) -> bool:
        """Whether one more request may begin; if so it counts as begun."""
        self.reached = self._limit()
        if self.reached is not None:
            return False
        self.spent.requests += 1
        self._under_way += 1
        return True

    def answered(self, prompt_tokens: int, completion_tokens: int) -> None:
        """A request brought an answer."""
        self._under_way -= 1
        self._answers += 1
        self.spent.prompt_tokens += prompt_tokens
        self.spent.completion_tokens += completion_tokens

    def failed(self) -> None:
        """A request brought none; what it used is not known and counts as nothing."""
        self._under_way -= 1

    def _limit(self) -> str | None:
        budget, spent = self.budget, self.spent
        if budget.requests is not None:
            requests = spent.requests + self._retries()
            if requests + 1 > budget.requests:
                return f"{budget.requests} requests ({requests} made)"
        if budget.tokens is not None and self._would_be(spent.tokens, self._begun.tokens) > budget.tokens:
            return f"{budget.tokens} tokens ({spent.tokens} used)"
        if budget.money is not None:
            begun = self._price(self._begun.prompt_tokens, self._begun.completion_tokens)
            if self._would_be(self.money, begun) > budget.money:
                return f"{budget.money:g} {budget.currency} ({self.money:.2f} spent)"
        return None

    def _would_be(self, now: float, begun: float) -> float:
        """What it comes to with one more request, all of those under way taken as average."""
        if not self._answers:
            return now + 1e-9
        return now + (self._under_way + 1) * (now - begun) / self._answers

    def _price(self, prompt: int, completion: int) -> float:
        return (prompt * (self.budget.price_prompt or 0.0) + completion * (self.budget.price_completion or 0.0)) / 1e6
