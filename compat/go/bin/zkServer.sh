#!/usr/bin/env bash
# Stands in for the script of that name that the tests start: `zkServer.sh start-foreground FILE`. Starts Loggos instead.
set -euo pipefail
arguments=()
for flag in ${SERVER_JVMFLAGS:-}; do
  case $flag in
    -Dzookeeper.DigestAuthenticationProvider.superDigest=*) arguments+=(--super-digest "${flag#*=}") ;;
  esac
done
exec "$LOGGOS_BINARY" zk serve --zoo-cfg "$2" "${arguments[@]}"
