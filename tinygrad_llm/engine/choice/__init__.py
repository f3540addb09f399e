"""The choice of tokens beyond sampling itself: penalties, grammars, log-probabilities, ends of an answer."""
