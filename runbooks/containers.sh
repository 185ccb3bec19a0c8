# The runbooks' words where compose/agent.yml runs the agent. Type, at the top of the repository: . runbooks/containers.sh
compose() { docker compose --progress quiet -f compose/agent.yml "$@"; }

phaze() { compose exec -T hub phaze "$@"; }

valkey-cli() { compose exec -T valkey valkey-cli --raw "$@"; }

logs() { # without what Compose writes between the lines for a terminal
    compose logs --no-log-prefix --no-color "$1" | sed 's/\x1b\[[0-9]*K//g'
}

stop() { compose stop; }

start() { # on a machine that is busy with starting, a check may fail that passes a minute later
    compose up --detach --wait 2>/dev/null || { sleep 60; compose up --detach --wait; }
}
