"""Source to window to follower: fetches each mirror partition once and serves it to the target's stock
followers.
"""
