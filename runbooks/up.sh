# The runbooks' words where `phaze up` runs the agent. Type: . runbooks/up.sh
export PHAZE_DATA_DIR="${PHAZE_DATA_DIR:-$HOME/.local/share/phaze}"

valkey-cli() { # the embedded server's, by its socket; redis-cli does as well
    "$(type -P valkey-cli || type -P redis-cli)" --raw -s "$(sed 's|^unix://||' "$PHAZE_DATA_DIR/redis.url")" "$@"
}

logs() { cat "$PHAZE_DATA_DIR/logs/$1.log"; }

stop() { # as Ctrl-C in its terminal
    kill -INT "$(cat "$PHAZE_DATA_DIR/lock")" && flock --timeout 60 "$PHAZE_DATA_DIR/lock" true
}

start() {
    : >"$PHAZE_DATA_DIR/up.log" # now, or what the last start said could be taken for this one's
    nohup phaze up </dev/null >>"$PHAZE_DATA_DIR/up.log" 2>&1 &
    until grep -q "^hub on" "$PHAZE_DATA_DIR/up.log"; do
        kill -0 $! 2>/dev/null || { cat "$PHAZE_DATA_DIR/up.log"; return 1; }
        sleep 0.2
    done
}
