/* docs/errors.md against WEIR_STATUS_MAP: same codes, same order, same texts, each with cause and remedy. */
#include "base_test.h"

typedef struct section {
    const char *name;
    const char *text;
} section;

static const section wanted[] = {
#define SECTION_ROW(name, text) {#name, text},
    WEIR_STATUS_MAP(SECTION_ROW)
#undef SECTION_ROW
};

#define N_WANTED (sizeof wanted / sizeof *wanted)

/* The next heading's text; moves *rest to where its section ends. */
static char *next_section(char **rest)
{
    char *start = strncmp(*rest, "## ", 3) == 0 ? *rest : strstr(*rest, "\n## ");
    if (start == NULL) return NULL;
    start += *start == '\n' ? 4 : 3;
    char *end = strstr(start, "\n## ");
    *rest = end != NULL ? end : start + strlen(start);
    return start;
}

static void page_and_list_agree(void **state)
{
    fixture *fix = *state;
    const char *folder = getenv("WEIR_SOURCE_DIR");
    char path[600], *text = NULL;
    snprintf(path, sizeof path, "%s/docs/errors.md", folder != NULL ? folder : ".");
    assert_status(base_file_slurp(fix->env, path, 1 << 20, &text, NULL, &fix->err), WEIR_OK);
    char *rest = text, *at;
    size_t n = 0;
    while ((at = next_section(&rest)) != NULL) {
        if (n == N_WANTED) fail_msg("a section too many: %.40s", at);
        char body[8192], head[512];
        size_t len = (size_t)(rest - at);
        assert_true(len < sizeof body);
        memcpy(body, at, len);
        body[len] = '\0';
        snprintf(head, sizeof head, "%s\n> %s\n\n**Cause.** ", wanted[n].name, wanted[n].text);
        if (strncmp(body, head, strlen(head)) != 0) fail_msg("section %zu should begin:\n## %s", n, head);
        char *remedy = strstr(body, "\n\n**Remedy.** ");
        if (remedy == NULL) fail_msg("%s has no remedy", wanted[n].name);
        assert_true(remedy - body > (ptrdiff_t)strlen(head) + 10);
        assert_true(strlen(remedy) > strlen("\n\n**Remedy.** ") + 10);
        assert_string_equal(weir_status_name((weir_status)n), wanted[n].name);
        assert_string_equal(weir_status_text((weir_status)n), wanted[n].text);
        n++;
    }
    if (n < N_WANTED) fail_msg("no section for %s", wanted[n].name);
    assert_int_equal(n, WEIR_STATUS_COUNT);
    base_free(fix->env, text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {TEST(page_and_list_agree)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
