#!/bin/sh
# Starts redis-server with broker/redis.conf and broker/users.acl, the latter with the SHA-256 of each role's
# password in it. Further arguments are the server's own, such as --bind 0.0.0.0 or --dir /data.
set -eu
umask 077

folder=${CCS_BROKER_FOLDER:-$(dirname "$0")/../broker}
users=${CCS_ACL_FILE:-/tmp/ccs-users.acl}

digest() {
    printf %s "$1" | sha256sum | cut -d ' ' -f 1
}

sed -e "s/PRODUCER_SHA256/$(digest "${CCS_PRODUCER_PASSWORD:?}")/" \
    -e "s/WORKER_SHA256/$(digest "${CCS_WORKER_PASSWORD:?}")/" \
    -e "s/MONITOR_SHA256/$(digest "${CCS_MONITOR_PASSWORD:?}")/" \
    -e "s/OPERATOR_SHA256/$(digest "${CCS_OPERATOR_PASSWORD:?}")/" \
    "$folder/users.acl" >"$users"

exec redis-server "$folder/redis.conf" --aclfile "$users" "$@"
