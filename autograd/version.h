/* Which brick this is: what a plugin is built for, what files and stages are made by. */
#ifndef BK_VERSION_H
#define BK_VERSION_H

#define BK_VERSION "0.1.0"

#endif
