#!/usr/bin/env bash
# How many commits each experiment of the page of results is behind HEAD, and the greatest number. A commit that git does not have,
# or that the page does not name, is unknown.
set -euo pipefail
cd "$(dirname "$0")/.."
page=${1:-docs/results.md}
[ $# -le 1 ] && [ -r "$page" ] || { echo "usage: results_age.sh [PAGE.md]" >&2; exit 2; }
row='%-18s %-24s %-12s %s\n'
greatest=unknown nr_unknown=0
# shellcheck disable=SC2059 # The format is above.
printf "$row" experiment commit day "commits behind"
while IFS='|' read -r name commit mark day; do
    if behind=$(git rev-list --count "${commit:-unknown}..HEAD" 2>/dev/null); then
        [ "$greatest" != unknown ] && [ "$behind" -le "$greatest" ] || greatest=$behind
    else
        behind=unknown nr_unknown=$((nr_unknown + 1))
    fi
    # shellcheck disable=SC2059
    printf "$row" "$name" "${commit:-unknown}$mark" "${day:-unknown}" "$behind"
done < <(sed -nE '/^`umemcg-bench /s/^`umemcg-bench ([^ ]+)[^`]*`( at commit `([^`]*)`( \(modified\))? on ([0-9-]+))?.*/\1|\3|\4|\5/p' "$page")
echo "greatest: $greatest; unknown: $nr_unknown"
