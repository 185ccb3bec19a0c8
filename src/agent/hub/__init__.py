"""The hub: a small control plane. Agents report to it; it keeps the catalogue and enqueues what is still owed.

database.py    one SQLite file: pragmas, transactions, what can go wrong
schema.py      the tables, and the steps from one schema version to the next
file_tasks.py  which tasks every file is owed, under which profile
batches.py     approved batches: asked for, done, undone; the files follow
recording.py   results and scan reports come in, once
derived.py     what follows from files and results: the tracks and what is owed
tracks.py      reading the tracks: filters, order, duplicate groups
duplicates.py  which tracks sound the same; index.py has it found out in a process of its own, by library.py
copies.py      the copies of a recording side by side, and the best of them
listening.py   a file of the catalogue in a browser
catalogue.py   all of it behind one class
reconciler.py  the loop that puts what is owed on the lanes
activity.py    what the lanes are doing now
beats.py       which agents are alive, and whether two workers beat for one
overview.py    agents and queues, for the page; queues.py as JSON and for Prometheus
login.py       one name and password, sessions, and the tokens of changes; attempts.py slows down who guesses
guard.py       what stands before every route: who asks, and who may change something
dashboard.py   SAQ's own dashboard at /saq; shown_jobs.py is what it gets to see of jobs
app.py         HTTP: the agents' API, JSON for people's tools, the page
server.py      the process
"""
