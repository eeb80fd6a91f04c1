"""Wire: what driver and nodes of a fleet say to each other, as JSON; knows neither of the two."""
