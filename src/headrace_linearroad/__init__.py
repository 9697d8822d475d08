"""Linear Road: tolls, accidents, balances, expenditures and travel times of L expressways, as a query of headrace.

An application: it uses what any user of headrace can use, and the engine knows nothing of it.
"""
