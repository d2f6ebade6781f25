#!/usr/bin/env bash
# Replaces ZooKeeper's script, which the tests run as `zkServer.sh start-foreground FILE`, and starts Loggos instead.
set -euo pipefail
arguments=()
for flag in ${SERVER_JVMFLAGS:-}; do
  case $flag in
    -Dzookeeper.DigestAuthenticationProvider.superDigest=*) arguments+=(--super-digest "${flag#*=}") ;;
  esac
done
exec "$LOGGOS_BINARY" zk serve --zoo-cfg "$2" "${arguments[@]}"
