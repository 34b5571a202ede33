#include "io/elf.h"

#include <elf.h>
#include <link.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

typedef struct object {
    const char *path, *text;
    size_t len;
    ElfW(Ehdr) head;
    bk_error *err;
} object;

static bk_status damaged(const object *o)
{
    return bk_fail(o->err, BK_EFORMAT, "%s: is a damaged shared object", o->path);
}

/* Parts lie anywhere in the file, aligned or not. */
static bk_status take(const object *o, uint64_t at, void *to, size_t n)
{
    if (at > o->len || n > o->len - at) return damaged(o);
    memcpy(to, o->text + at, n);
    return BK_OK;
}

static bk_status take_head(object *o)
{
    bool elf = o->len >= sizeof o->head && memcmp(o->text, ELFMAG, SELFMAG) == 0;
    if (elf) memcpy(&o->head, o->text, sizeof o->head);
    if (elf && o->head.e_type == ET_DYN && o->head.e_shentsize == sizeof(ElfW(Shdr))) return BK_OK;
    return bk_fail(o->err, BK_EFORMAT, "%s: is no shared object for this machine (gcc -shared -fPIC makes one)",
                   o->path);
}

static bk_status take_section(const object *o, uint64_t i, ElfW(Shdr) *to)
{
    return i < o->head.e_shnum ? take(o, o->head.e_shoff + i * sizeof *to, to, sizeof *to) : damaged(o);
}

static bk_status find_symbols(const object *o, ElfW(Shdr) *symbols, ElfW(Shdr) *names)
{
    for (uint64_t i = 0; i < o->head.e_shnum; i++) {
        BK_TRY(take_section(o, i, symbols));
        if (symbols->sh_type == SHT_DYNSYM) return take_section(o, symbols->sh_link, names);
    }
    return bk_fail(o->err, BK_EFORMAT, "%s: exports nothing", o->path);
}

static bool is_called(const object *o, const ElfW(Shdr) *names, const ElfW(Sym) *s, const char *name)
{
    size_t n = strlen(name) + 1;
    uint64_t at = names->sh_offset + s->st_name;
    return at <= o->len && n <= o->len - at && memcmp(o->text + at, name, n) == 0;
}

/* Where it lies in the file, by the section that holds it; those without bytes there (.bss) are zero. */
static bk_status take_variable(const object *o, const ElfW(Sym) *s, void *to, size_t size, size_t *found)
{
    ElfW(Shdr) home;
    if (s->st_shndx == SHN_UNDEF || s->st_size < size) {
        *found = s->st_shndx == SHN_UNDEF ? 0 : s->st_size;
        return BK_OK;
    }
    BK_TRY(take_section(o, s->st_shndx, &home));
    if (home.sh_type != SHT_PROGBITS) return BK_OK;
    *found = s->st_size;
    return take(o, home.sh_offset + (s->st_value - home.sh_addr), to, size);
}

bk_status bk_elf_variable(const char *path, const char *text, size_t len, const char *name, void *to, size_t size,
                          size_t *found, bk_error *err)
{
    object o = {.path = path, .text = text, .len = len, .err = err};
    ElfW(Shdr) symbols, names;
    *found = 0;
    BK_TRY(take_head(&o));
    BK_TRY(find_symbols(&o, &symbols, &names));
    for (uint64_t i = 0; i < symbols.sh_size / sizeof(ElfW(Sym)); i++) {
        ElfW(Sym) s;
        BK_TRY(take(&o, symbols.sh_offset + i * sizeof s, &s, sizeof s));
        if (is_called(&o, &names, &s, name)) return take_variable(&o, &s, to, size, found);
    }
    return BK_OK;
}
