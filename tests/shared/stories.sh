#!/usr/bin/env bash
# The real small model of the shared folder, see stories.c.
set -euo pipefail
if [ ! -f "$SHARED/golden/stories.h5" ]; then
    echo "no $SHARED/golden/stories.h5"
    exit 0
fi
make --no-print-directory -s build/tests/shared/stories
exec build/tests/shared/stories
