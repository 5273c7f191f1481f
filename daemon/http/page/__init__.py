"""The page at `/`: how the cache is, for a person with a browser. All but the history is imported at its first request.

`document` puts the page together from `sections`, which are made of `charts` and of elements of `html`. `view` is what
they show, read at one moment, `token_history` counts the last hour, `remedies` says what to do after an event, and
`assets` has the style and the script.
"""
