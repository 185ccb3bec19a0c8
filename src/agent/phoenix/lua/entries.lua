-- entries.lua: the entries of a service's stream for which a record's job answers, and their end.
-- An entry stays pending in its group as long as its job is unsettled; whatever ends the job ends its entries with it.

-- What is kept of a record in the hash of its service: `version entry,entry queue`.
local function entries_of(service, record)
    local kept = redis.pcall('HGET', entries_key(service), record)
    if type(kept) ~= 'string' then return nil end
    local version, ids, queue = string.match(kept, '^(%S+) ([%d,-]+) (.*)$')
    return version and {version = version, ids = ids, queue = queue}
end

local function remember_entries(service, record, version, ids, queue)
    redis.call('HSET', entries_key(service), record, version .. ' ' .. ids .. ' ' .. queue)
end

-- Acknowledged and deleted: that is all that ends an entry. One that somebody deleted before is no error.
local function end_entry(service, id)
    redis.call('XACK', stream_key(service), group_name(service), id)
    redis.call('XDEL', stream_key(service), id)
end

local function end_entries(service, record)
    local kept = entries_of(service, record)
    if not kept then return end
    for id in string.gmatch(kept.ids, '[^,]+') do end_entry(service, id) end
    redis.call('HDEL', entries_key(service), record)
end

-- Pages belong to the version for which they were left: the end of an older one leaves them to the newer.
local function drop_pages(record, version)
    local meant = redis.call('MGET', pages_version_key(record))[1]
    if meant and meant ~= '' and meant ~= version then return end
    redis.call('DEL', pages_key(record), pages_version_key(record))
end

-- Raises where end_entries could not write. What ends a job asks before it writes anything.
local function demand_entries(service)
    demand(entries_key(service), 'hash')
    demand(stream_key(service), 'stream')
end
