/* How many guesses go into a pass: as many as give the most tokens a second, by what was measured. */
#include "rt_answer.h"

#include <string.h>

#define GAIN_MIN       1.05 /* expected; below it a pass goes without */
#define KEEP           0.98 /* weight that a trial keeps with each that follows */
#define IDLE_PASSES    64   /* until a measured time is doubted */
#define IDLE_FEW       8
#define DOUBT          0.0005
#define ROW_STREAMED   0.01 /* of a pass, for each row more, while nothing is measured */
#define ROW_RESIDENT   0.1
#define GAIN_SURE      1.5 /* worth breaking a pause for */
#define LOSS_SHARE     0.005
#define LOSS_MEMORY    256 /* passes */
#define LOSS_PASSES    0.5
#define PAUSE          48
#define PAUSE_MAX      384
#define DRAFT_FIRST    4 /* guesses of a draft model about which nothing is known */
#define DRAFT_WAIT     16
#define DRAFT_WAIT_MAX 1024
#define DRAFT_ERRORS   3

/* ---- what passes cost ---- */

void rt_costs_add(rt_costs *c, uint32_t rows, double seconds)
{
    /* The first finds nothing read ahead. A prompt's is better than nothing. */
    if (c->n_passes++ == 0 && rows <= RT_COST_ROWS) return;
    if (rows > RT_COST_ROWS) {
        if (rows >= c->long_rows) {
            c->long_rows = rows;
            c->long_seconds = seconds;
        }
        return;
    }
    if (c->idle[rows] > IDLE_PASSES && c->count[rows] > 1) c->count[rows] = 1;
    /* Something else on the machine can hold up one pass; it says little about the next. */
    if (c->count[rows] > 1 && seconds > 4 * c->seconds[rows]) seconds = 4 * c->seconds[rows];
    double before = c->seconds[rows];
    c->seconds[rows] += (seconds - before) / (double)(base_min(c->count[rows], 7) + 1);
    double change = rows == 1 && c->count[1] >= 4 ? c->seconds[1] / before : 1;
    c->count[rows]++;
    c->idle[rows] = 0;
    for (uint32_t r = 1; r <= RT_COST_ROWS; r++) {
        if (r == rows || c->count[r] == 0 || ++c->idle[r] <= IDLE_FEW) continue;
        /* What is not measured now goes with the machine, as plain passes show it; and a time that was
         * measured on a bad moment comes down until it is tried again. */
        c->seconds[r] *= change;
        if (c->idle[r] > IDLE_PASSES && r > rows && c->seconds[r] > c->seconds[rows])
            c->seconds[r] -= DOUBT * (c->seconds[r] - c->seconds[rows]);
    }
}

/* Of measured rows: no longer than what a pass of more rows took. */
static double measured(const rt_costs *c, uint32_t rows)
{
    double least = c->seconds[rows];
    for (uint32_t r = rows + 1; r <= RT_COST_ROWS; r++)
        if (c->count[r] != 0 && c->seconds[r] < least) least = c->seconds[r];
    return least;
}

double rt_costs_of(const rt_costs *c, uint32_t rows)
{
    if (rows > RT_COST_ROWS) rows = RT_COST_ROWS;
    if (c->count[rows] != 0) return measured(c, rows);
    uint32_t below = rows, above = rows;
    while (below > 0 && c->count[below] == 0) below--;
    while (above <= RT_COST_ROWS && c->count[above] == 0) above++;
    double low = below > 0 ? measured(c, below) : 0;
    double high = above <= RT_COST_ROWS ? measured(c, above) : c->long_rows != 0 ? c->long_seconds : 0;
    uint32_t high_rows = above <= RT_COST_ROWS ? above : c->long_rows;
    if (low == 0) return high;
    if (high <= low) return high != 0 ? low : low * (1 + c->row_guess * (rows - below));
    return low + (high - low) * (double)(rows - below) / (double)(high_rows - below);
}

/* ---- how often guesses are right ---- */

static uint32_t kind_of(uint32_t length)
{
    static const uint32_t from[RT_KIND_DRAFT] = {1, 2, 3, 4, 6, 9, 14, 20};
    uint32_t kind = 0;
    while (kind + 1 < RT_KIND_DRAFT && length >= from[kind + 1]) kind++;
    return kind;
}

static void note(rt_guessing *g, uint32_t kind, bool hit)
{
    g->hits[kind] = g->hits[kind] * KEEP + (hit ? 1 : 0);
    g->trials[kind] = g->trials[kind] * KEEP + 1;
}

/* Before anything is known, short repetitions are taken for chance. */
static double chance(const rt_guessing *g, uint32_t kind)
{
    static const double before[RT_KINDS] = {0.1, 0.15, 0.25, 0.35, 0.5, 0.6, 0.7, 0.8, 0.6};
    const double weight = 3;
    return (g->hits[kind] + weight * before[kind]) / (g->trials[kind] + weight);
}

void rt_guess_note(weir_session *s, const rt_guess *guess, uint32_t i, int32_t token)
{
    if (i == 0 && guess->looked >= 0) note(&s->guessing, kind_of(guess->found), guess->looked == token);
    if (i >= guess->n_rows || i >= RT_GUESSES_MAX) return;
    if (guess->length == 0)
        note(&s->guessing, RT_KIND_DRAFT, guess->token[i] == token);
    else if (i > 0)
        note(&s->guessing, kind_of(guess->length + i), guess->token[i] == token);
}

void rt_guess_begin(weir_session *s)
{
    for (uint32_t k = 0; k < RT_KINDS; k++) {
        s->guessing.hits[k] /= 2;
        s->guessing.trials[k] /= 2;
    }
}

/* What an answer alone in its passes lost is limited, whatever the estimates said. */
void rt_guess_settle(weir_session *s, const rt_costs *c, uint32_t n_rows, uint32_t n_tokens)
{
    rt_guessing *g = &s->guessing;
    double plain = rt_costs_of(c, 1), took = rt_costs_of(c, n_rows);
    if (plain == 0) return;
    g->total += took - g->total / LOSS_MEMORY;
    g->pause -= (uint32_t)base_min(g->pause, n_tokens);
    if (n_rows == 1) return;
    g->profit += (double)n_tokens * plain - took;
    if (g->profit > plain) {
        g->profit = plain; /* gains of another text are not to be lost on this one */
        g->wait = 0;
    }
    if (g->profit > -LOSS_SHARE * g->total - LOSS_PASSES * plain) return;
    g->pause = g->wait = (uint32_t)base_min(g->wait == 0 ? PAUSE : 2 * g->wait, PAUSE_MAX);
    g->profit = g->total = 0;
}

/* ---- choosing ---- */

/* A pass as it stands: its rows, and the tokens that it is expected to give. */
typedef struct stand {
    const rt_costs *costs;
    uint32_t rows;
    double tokens;
} stand;

static double rate_of(const stand *p, uint32_t n, double more, double seconds)
{
    return (p->tokens + more) / (rt_costs_of(p->costs, p->rows + n) + seconds);
}

/* The best number of guesses up to `most`; *rate what it gives, *more the tokens expected of it. each:
 * seconds that a guess itself costs. length 0: the draft's. */
static uint32_t best_count(const stand *p, const rt_guessing *g, uint32_t length, uint32_t most, double each,
                           double *rate, double *more)
{
    uint32_t best = 0;
    double right = 1, sum = 0, least = rate_of(p, 0, 0, 0) * (g->pause != 0 ? GAIN_SURE : GAIN_MIN);
    *rate = rate_of(p, 0, 0, 0);
    *more = 0;
    for (uint32_t n = 1; n <= most; n++) {
        right *= chance(g, length == 0 ? RT_KIND_DRAFT : kind_of(length + n - 1));
        sum += right;
        double here = rate_of(p, n, sum, each * n);
        if (here < least || here <= *rate) continue;
        best = n;
        *rate = here;
        *more = sum;
    }
    return best;
}

/* Asks the draft model; errors only end its use, since the answer does not depend on it. */
static uint32_t ask_draft(weir_answer *a, uint32_t n)
{
    weir_session *s = a->session;
    weir_error err = {0};
    if (rt_draft(s, &a->draw, n, a->guess.token, &a->guess.n, &err) == WEIR_OK) return a->guess.n;
    s->guessing.draft_errors++;
    base_log(s->model->env, BASE_LOG_WARN, "the draft model failed, the answer goes on without its guess: %s",
             err.message);
    return a->guess.n = 0;
}

/* Pauses grow while the draft model does not pay. */
static void draft_paid(rt_guessing *g, bool paid)
{
    if (paid) {
        g->draft_wait = DRAFT_WAIT;
        return;
    }
    g->draft_pause = g->draft_wait = (uint32_t)base_max(g->draft_wait, DRAFT_WAIT);
    g->draft_wait = (uint32_t)base_min(2 * g->draft_wait, DRAFT_WAIT_MAX);
}

/* How many guesses of the draft model are worth asking for; more than looking up gives where it is not 0. */
static uint32_t draft_count(const stand *p, weir_answer *a, uint32_t most, double *rate, double *more)
{
    rt_guessing *g = &a->session->guessing;
    if (a->session->draft == NULL || g->draft_errors >= DRAFT_ERRORS || most == 0) return 0;
    if (a->options.speculate == WEIR_SPECULATE_DRAFT) return most;
    double with, gives;
    uint32_t n = best_count(p, g, 0, most, g->draft_seconds, &with, &gives);
    if (g->draft_pause > 0) {
        g->draft_pause--;
        return 0;
    }
    if (g->draft_seconds == 0 || g->trials[RT_KIND_DRAFT] < 2) return (uint32_t)base_min(most, DRAFT_FIRST);
    draft_paid(g, n != 0);
    if (n == 0 || with <= *rate) return 0;
    *rate = with;
    *more = gives;
    return n;
}

/* Sets the guesses of one answer that add most; gives the tokens expected of them. */
static double guess_for(const stand *p, weir_answer *a, uint32_t most)
{
    rt_guess *g = &a->guess;
    weir_session *s = a->session;
    weir_speculate mode = a->options.speculate;
    double rate = rate_of(p, 0, 0, 0), more = 0;
    uint32_t n = 0, length = 0;
    if (mode != WEIR_SPECULATE_DRAFT) g->n = rt_lookup(s->tokens, s->n_tokens, most, g->token, &length);
    if (g->n != 0) {
        g->looked = g->token[0];
        g->found = g->length = length;
        n = mode == WEIR_SPECULATE_LOOKUP ? g->n : best_count(p, &s->guessing, length, g->n, 0, &rate, &more);
    }
    if (mode != WEIR_SPECULATE_LOOKUP) {
        uint32_t wanted = draft_count(p, a, most, &rate, &more);
        if (wanted != 0) {
            n = ask_draft(a, wanted);
            g->length = 0;
        }
    }
    g->n_rows = n;
    return more;
}

/* Guesses that are of use: an answer ends at its length, a sequence with its context. */
static uint32_t most_guesses(const weir_answer *a)
{
    uint64_t most = a->options.speculate_tokens;
    most = base_min(most, a->max_tokens - a->n_tokens - 1);
    most = base_min(most, a->session->model->run->plan.view.ctx_tokens - a->session->n_tokens);
    return (uint32_t)base_min(most, RT_GUESSES_MAX);
}

void rt_speculate(rt_loaded *run, rt_share *shares, size_t n, uint32_t rows_left, uint32_t outputs_left)
{
    run->costs.row_guess = run->plan.view.streamed_bytes_per_pass != 0 ? ROW_STREAMED : ROW_RESIDENT;
    stand p = {.costs = &run->costs, .rows = (uint32_t)n, .tokens = (double)n};
    uint32_t room = (uint32_t)base_min(rows_left, outputs_left);
    for (size_t i = 0; i < n; i++) {
        weir_answer *a = shares[i].answer;
        weir_session *s = a->session;
        a->guess.n = a->guess.n_rows = 0;
        a->guess.looked = -1;
        if (a->options.speculate == WEIR_SPECULATE_OFF || a->max_tokens <= a->n_tokens) continue;
        /* The first pass says what one costs. */
        if (a->options.speculate == WEIR_SPECULATE_AUTO && rt_costs_of(&run->costs, p.rows) == 0) continue;
        p.tokens += guess_for(&p, a, (uint32_t)base_min(most_guesses(a), room / (n - i)));
        uint32_t more = a->guess.n_rows;
        memcpy(s->tokens + s->n_tokens, a->guess.token, more * sizeof *s->tokens);
        shares[i].n_rows += more;
        shares[i].n_outputs += more;
        p.rows += more;
        room -= more;
    }
}
