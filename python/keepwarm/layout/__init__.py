"""How a prompt is laid out so that it repeats: rendering, what breaks a prefix, and safe repairs.

Works on requests with their text, in memory only; the gateway calls it on live traffic, `keepwarm
lint` on logs. May import nothing of the package but errors.
"""
