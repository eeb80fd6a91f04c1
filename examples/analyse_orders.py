"""Analyse orders.csv with pandas: a table, a chart and a `result` for the caller."""

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import pandas as pd

orders = pd.read_csv("orders.csv", parse_dates=["date"])
orders["revenue"] = (
    orders["quantity"] * orders["unit_price"] * (1 - orders["discount_percent"] / 100)
)

by_category = orders.groupby("category")["revenue"].agg(["count", "sum", "mean"]).round(2)
print(by_category.sort_values("sum", ascending=False).to_string())

monthly = orders.pivot_table(
    index=orders["date"].dt.month, columns="category", values="revenue", aggfunc="sum"
).fillna(0)
axes = monthly.plot.bar(stacked=True, figsize=(8, 4), title="Revenue by month and category")
axes.set_xlabel("month of 2025")
axes.set_ylabel("revenue")
plt.tight_layout()
plt.savefig("revenue.png", dpi=100)
plt.close("all")

best = orders.groupby("product")["revenue"].sum().idxmax()
result = {
    "orders": len(orders),
    "revenue": round(float(orders["revenue"].sum()), 2),
    "best_product": str(best),
    "best_month": int(monthly.sum(axis=1).idxmax()),
    "mean_rating": round(float(orders["rating"].mean()), 2),
    "unrated": int(orders["rating"].isna().sum()),
}
print(f"best seller: {best}")
