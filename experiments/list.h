/* What `brick list` can print: one line per topic, in list.c. */
#ifndef BK_LIST_H
#define BK_LIST_H

#include <stdio.h>

/* A topic prints its table: one entry per line, name first. */
typedef struct bk_list_topic {
    const char *name, *about;
    void (*print)(FILE *to);
} bk_list_topic;

extern const bk_list_topic bk_list_topics[];
extern const int bk_list_topic_count;

#endif
