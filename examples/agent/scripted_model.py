"""A stand-in for a model: it knows this one conversation, and reads what the sandbox told it.

Like the real ones it guesses a column's name wrong, is told so, and does better.
"""

LOOK = """
import pandas as pd
orders = pd.read_csv("orders.csv", parse_dates=["date"])
orders.head(3)
"""

GUESS = """
orders["revenue"] = orders["quantity"] * orders["price"]
"""

CORRECTED = """
paid = 1 - orders["discount_percent"] / 100
orders["revenue"] = orders["quantity"] * orders["unit_price"] * paid
days = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]
by_day = orders.groupby(orders["date"].dt.day_name())["revenue"].sum().reindex(days)
by_day.round(2).to_frame()
"""

DRAW = """
import matplotlib.pyplot as plt
best = by_day.idxmax()
colours = ["seagreen" if day == best else "lightgrey" for day in days]
axes = by_day.plot.bar(color=colours, figsize=(7, 4), rot=0, xlabel="", ylabel="revenue")
axes.set_title("Revenue by weekday")
axes.spines[["top", "right"]].set_visible(False)
plt.tight_layout()
plt.show()
print(f"{best}: {by_day[best]:.2f} of {by_day.sum():.2f}")
"""


class ScriptedModel:
    """Says what to do next; `schema` is what a real model is told of the tool's arguments."""

    def next(self, said, schema):
        told = [text for who, text in said if who == "tool"]
        if not told:
            return self._run(LOOK)
        if len(told) == 1:
            return self._run(GUESS)
        if "KeyError" in told[-1]:
            return self._run(CORRECTED)
        if "image 1" not in told[-1]:
            return self._run(DRAW)
        best = next(line for line in told[-1].splitlines() if "day: " in line)
        return {"answer": f"{best.partition(':')[0]} brings the most: {best.partition(': ')[2]}."}

    def _run(self, code):
        return {"arguments": {"code": code.strip()}}
