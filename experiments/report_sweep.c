#include "experiments/report.h"
#include <stdio.h>
#include <string.h>
bool bk_report_is_sweep(const char *dir) { char p[BK_REPORT_PATH+32]; if (strnlen(dir,4096)>4000) return false; snprintf(p,sizeof p,"%s/results.jsonl",dir); return bk_exists(p);}
bk_status bk_report_sweep_section(const char *dir, bk_page *page, bk_error *err) {(void)page; return bk_fail(err,BK_EUNSUP,"%s",dir);}
