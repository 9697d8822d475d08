"""The Linear Road benchmark as a headrace query: tolls, accidents, balances, expenditures and travel times of L
expressways.

This package is an application: it uses only headrace's public features, and the engine has no code specific to it.
"""
