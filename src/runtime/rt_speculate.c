/* How many guesses go into a pass: as many as give the most tokens a second, by what was measured. */
#include "rt_answer.h"

#include <string.h>

#define GAIN_MIN       1.05 /* expected; below it a pass goes without */
#define KEEP           0.98 /* weight that a trial keeps with each that follows */
#define IDLE_PASSES    64   /* until a measured time is doubted */
#define IDLE_FEW       8
#define REFUTED        0.7 /* of a measured time: a longer pass has taken less since */
#define DOUBT          0.0005
#define ROW_STREAMED   0.01 /* of a pass, for each row more, while nothing is measured */
#define ROW_RESIDENT   0.25
#define ROWS_FEW       4
#define PURSE_FIRST    0.5  /* tokens */
#define PURSE_SHARE    0.01 /* of a token, for each pass */
#define PURSE_MAX      8
#define PURSE_KEPT     1 /* of the gains with one text, for the next */
#define DRAFT_WAIT     16
#define DRAFT_WAIT_MAX 1024
#define DRAFT_ERRORS   3
#define DRAFT_ROW      0.2   /* of a token: a row of text that the draft model reads */
#define DRAFT_TAIL     24    /* rows of it, to begin with */
#define ONCE_SHARE     0.125 /* of that reading, for the first pass that it serves */

/* ---- what passes cost ---- */

/* Of measured rows: no longer than what a pass of more rows took. */
static double measured(const rt_costs *c, uint32_t rows)
{
    double least = c->seconds[rows];
    for (uint32_t r = rows + 1; r <= RT_COST_ROWS; r++)
        if (c->count[r] != 0 && c->seconds[r] < least) least = c->seconds[r];
    return least;
}

/* Seconds for each row more than the most that were measured: as with those, but no less than in a prompt's
 * passes, which compute the head for one row alone, and beyond the fewest not much more, since kernels get
 * better with rows. */
static double slope_beyond(const rt_costs *c, uint32_t rows, double seconds)
{
    const double head = 1.5;
    double slope = c->row_guess * seconds;
    if (rows > 1 && c->count[1] != 0) slope = (seconds - measured(c, 1)) / (double)(rows - 1);
    if (c->long_rows > rows) {
        double least = (c->long_seconds - seconds) / (double)(c->long_rows - rows);
        if (rows >= ROWS_FEW && slope > head * least) slope = head * least;
        if (slope < least) slope = least;
    }
    return slope > 0 ? slope : 0;
}

double rt_costs_of(const rt_costs *c, uint32_t rows)
{
    if (rows > RT_COST_ROWS) rows = RT_COST_ROWS;
    if (c->count[rows] != 0) return measured(c, rows);
    uint32_t below = rows, above = rows;
    while (below > 0 && c->count[below] == 0) below--;
    while (above <= RT_COST_ROWS && c->count[above] == 0) above++;
    double low = below > 0 ? measured(c, below) : 0;
    double high = above <= RT_COST_ROWS ? measured(c, above) : 0;
    if (low == 0) return high;
    if (high != 0) return low + (high - low) * (double)(rows - below) / (double)(above - below);
    return low + (double)(rows - below) * slope_beyond(c, below, low);
}

bool rt_costs_doubtful(const rt_costs *c, uint32_t rows)
{
    if (rows > RT_COST_ROWS) return false;
    if (c->idle[rows] > IDLE_PASSES) return true;
    if (c->count[rows] == 0 || c->idle[rows] <= IDLE_FEW) return false;
    for (uint32_t r = rows + 1; r <= RT_COST_ROWS; r++)
        if (c->count[r] != 0 && c->idle[r] < c->idle[rows] && c->seconds[r] < REFUTED * c->seconds[rows])
            return true;
    return false;
}

void rt_costs_add(rt_costs *c, uint32_t rows, uint32_t outputs, double seconds)
{
    /* The first finds nothing read ahead. A prompt's is better than nothing. */
    if (c->n_passes++ == 0 && rows <= RT_COST_ROWS) return;
    /* Rows without logits are spared the head, which in small models is much of a pass. */
    if (rows <= RT_COST_ROWS && outputs < rows) return;
    if (rows > RT_COST_ROWS) {
        if (rows >= c->long_rows) {
            c->long_rows = rows;
            c->long_seconds = seconds;
        }
        return;
    }
    bool doubtful = rt_costs_doubtful(c, rows);
    if (c->idle[rows] > IDLE_PASSES && c->count[rows] > 1) c->count[rows] = 1;
    /* Something else on the machine can hold up one pass; it says little about the next. */
    double most = c->count[rows] == 0 ? 2 * rt_costs_of(c, rows) : 4 * c->seconds[rows];
    if (most > 0 && c->count[rows] != 1 && seconds > most) seconds = most;
    double before = c->seconds[rows];
    /* Nothing makes a pass shorter than it is. */
    if (doubtful && seconds < before) c->count[rows] = 0;
    c->seconds[rows] += (seconds - before) / (double)(base_min(c->count[rows], 7) + 1);
    double change = rows == 1 && c->count[1] >= 4 ? c->seconds[1] / before : 1;
    c->count[rows]++;
    c->idle[rows] = 0;
    for (uint32_t r = 1; r <= RT_COST_ROWS; r++) {
        if (r == rows || ++c->idle[r] <= IDLE_FEW || c->count[r] == 0) continue;
        /* What is not measured now goes with the machine, as plain passes show it; and a time that was
         * measured on a bad moment comes down until it is tried again. */
        c->seconds[r] *= change;
        if (c->idle[r] > IDLE_PASSES && r > rows && c->seconds[r] > c->seconds[rows])
            c->seconds[r] -= DOUBT * (c->seconds[r] - c->seconds[rows]);
    }
}

/* ---- how often guesses are right ---- */

static uint32_t kind_of(uint32_t length)
{
    static const uint32_t from[RT_KIND_DRAFT] = {1, 2, 3, 4, 6, 9, 14, 20, 32, 48};
    uint32_t kind = 0;
    while (kind + 1 < RT_KIND_DRAFT && length >= from[kind + 1]) kind++;
    return kind;
}

static void note(rt_guessing *g, uint32_t kind, bool hit)
{
    g->hits[kind] = g->hits[kind] * KEEP + (hit ? 1 : 0);
    g->trials[kind] = g->trials[kind] * KEEP + 1;
}

/* Before anything is known, somewhat less than what small models gave with code, quotes and prose. What
 * short repetitions are worth is also learnt from those that are not checked, which costs nothing. */
static double chance(const rt_guessing *g, uint32_t kind)
{
    static const double before[RT_KINDS] = {0.08, 0.2, 0.3, 0.4, 0.55, 0.7, 0.8, 0.9, 0.95, 0.98, 0.6};
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
    rt_guessing *g = &s->guessing;
    for (uint32_t k = 0; k < RT_KINDS; k++) {
        g->hits[k] /= 2;
        g->trials[k] /= 2;
    }
    if (g->purse > PURSE_KEPT) g->purse = PURSE_KEPT;
    g->draft_errors = 0;
    if (g->draft_from >= s->n_tokens) g->draft_from = 0;
}

/* What the draft took. More than there was is its debt: it ends the draft's use, not that of looking up,
 * until half of what comes has paid it. */
static void pay_draft(rt_guessing *g, double tokens)
{
    double there = g->purse + PURSE_FIRST > 0 ? g->purse + PURSE_FIRST : 0;
    double now = tokens < there ? tokens : there;
    g->purse -= now;
    g->draft_debt += tokens - now;
    if (g->draft_debt > PURSE_MAX) g->draft_debt = PURSE_MAX;
    double back = g->draft_debt < PURSE_SHARE / 2 ? g->draft_debt : PURSE_SHARE / 2;
    g->draft_debt -= back;
    g->purse -= back;
}

void rt_guess_settle(const rt_costs *c, const rt_share *shares, size_t n)
{
    uint32_t n_guesses = 0;
    for (size_t i = 0; i < n; i++) n_guesses += shares[i].answer->guess.n_rows;
    double plain = rt_costs_of(c, (uint32_t)n), took = rt_costs_of(c, (uint32_t)n + n_guesses);
    if (plain == 0) return;
    double token = plain / (double)n;
    for (size_t i = 0; i < n; i++) {
        const rt_guess *x = &shares[i].answer->guess;
        rt_guessing *g = &shares[i].session->guessing;
        if (shares[i].answer->options.speculate != WEIR_SPECULATE_AUTO) continue;
        double spent = n_guesses != 0 ? (took - plain) * x->n_rows / n_guesses : 0;
        g->purse += PURSE_SHARE + x->n_right - spent / token;
        pay_draft(g, x->seconds / token);
        if (g->purse > PURSE_MAX) g->purse = PURSE_MAX;
    }
}

/* ---- choosing ---- */

/* A pass as it stands: its rows, the tokens that it is expected to give, and the seconds of one token without
 * guesses. */
typedef struct stand {
    const rt_costs *costs;
    uint32_t rows;
    double tokens;
    double token_seconds;
} stand;

/* Guesses that could be added to it. */
typedef struct offer {
    const rt_guessing *guessing;
    uint32_t length; /* of the text found again; 0: the draft's */
    uint32_t most;
    double once, each; /* seconds that having them takes: before the first ever, and each */
} offer;

/* What was chosen of it. */
typedef struct choice {
    uint32_t n;
    double rate; /* tokens a second that the pass is then expected to give */
    double more; /* tokens expected of the guesses */
} choice;

static double may_spend(const stand *p, const rt_guessing *g, bool drafts)
{
    return (PURSE_FIRST + g->purse - (drafts ? g->draft_debt : 0)) * p->token_seconds;
}

/* So many guesses that the pass gives the most tokens a second, if the purse covers them; 0 where that is
 * hardly more than without. */
static choice best_of(const stand *p, const offer *o)
{
    double now = rt_costs_of(p->costs, p->rows), right = 1, sum = 0;
    double spare = may_spend(p, o->guessing, o->length == 0);
    choice best = {.rate = p->tokens / now};
    double least = best.rate * GAIN_MIN;
    for (uint32_t n = 1; n <= o->most; n++) {
        double seconds = rt_costs_of(p->costs, p->rows + n) + o->once + o->each * n;
        if (seconds - now > spare) break;
        right *= chance(o->guessing, o->length == 0 ? RT_KIND_DRAFT : kind_of(o->length + n - 1));
        sum += right;
        double rate = (p->tokens + sum) / (seconds - o->once * (1 - ONCE_SHARE));
        if (rate >= least && rate > best.rate) best = (choice){n, rate, sum};
    }
    return best;
}

/* Asks the draft model, whose guesses take the place of those that were looked up; false where there are
 * none, and those stay. Errors only end its use for the rest of the answer, since that does not depend on it.
 * What cancels it cancels the pass that wanted the guesses, too, which says so. */
static bool ask_draft(weir_answer *a, uint32_t n)
{
    weir_session *s = a->session;
    weir_error err = {0};
    int32_t token[RT_GUESSES_MAX];
    double start = base_now(s->model->env);
    weir_status status = rt_draft(s, &a->draw, n, token, &n, &err);
    a->guess.seconds = base_now(s->model->env) - start;
    if (status == WEIR_ERR_CANCELLED) return false;
    if (status != WEIR_OK) {
        s->guessing.draft_errors++;
        base_log(s->model->env, BASE_LOG_WARN,
                 "the draft model failed, the answer goes on without its guess: %s", err.message);
        return false;
    }
    s->guessing.draft_errors = 0;
    if (n == 0) return false;
    memcpy(a->guess.token, token, n * sizeof *token);
    a->guess.n = n;
    a->guess.length = 0;
    return true;
}

/* What the draft model offers: with all of the text where the purse covers reading it, else with its end. */
static offer draft_offer(const stand *p, weir_answer *a, uint32_t most)
{
    weir_session *s = a->session;
    rt_guessing *g = &s->guessing;
    offer o = {.guessing = g, .most = most, .each = g->draft_seconds};
    if (o.each == 0) {
        o.each = rt_draft_seconds(s, p->token_seconds);
        o.most = most < 1 ? most : 1; /* which tells what one takes */
    }
    double row = o.each * DRAFT_ROW, spare = may_spend(p, g, true) - o.each * 2;
    uint32_t whole = rt_draft_rows(s, 0), here = rt_draft_rows(s, g->draft_from);
    if (g->draft_from > 1 && row * whole < spare && rt_draft_room(s, 0) != 0) {
        g->draft_from = 0;
        here = whole;
    } else if (row * here > spare && here > DRAFT_TAIL) {
        g->draft_from = s->n_tokens - DRAFT_TAIL;
        here = rt_draft_rows(s, g->draft_from);
    }
    o.once = here > 1 ? row * (here - 1) : 0;
    o.most = (uint32_t)base_min(o.most, rt_draft_room(s, g->draft_from));
    return o;
}

/* How many guesses of the draft model are worth asking for; more than looking up gives where it is not 0. */
static uint32_t draft_count(const stand *p, weir_answer *a, uint32_t most, choice *best)
{
    rt_guessing *g = &a->session->guessing;
    if (a->session->draft == NULL || g->draft_errors >= DRAFT_ERRORS || most == 0) return 0;
    if (a->options.speculate == WEIR_SPECULATE_DRAFT) {
        g->draft_from = 0;
        return (uint32_t)base_min(most, rt_draft_room(a->session, 0));
    }
    if (g->draft_pause > 0) {
        g->draft_pause--;
        return 0;
    }
    offer o = draft_offer(p, a, most);
    if (o.most == 0) return 0;
    choice c = best_of(p, &o);
    if (c.n != 0) {
        g->draft_wait = DRAFT_WAIT;
        if (c.rate <= best->rate) return 0;
        *best = c;
        return c.n;
    }
    /* Pauses grow while it is known and does not pay; behind each what is known counts less. */
    g->draft_pause = (uint32_t)base_max(g->draft_wait, DRAFT_WAIT);
    if (g->trials[RT_KIND_DRAFT] < 1) return 0;
    g->draft_wait = (uint32_t)base_min(2 * g->draft_pause, DRAFT_WAIT_MAX);
    g->hits[RT_KIND_DRAFT] /= 2;
    g->trials[RT_KIND_DRAFT] /= 2;
    return 0;
}

/* Sets the guesses of one answer that add most; gives the tokens expected of them. */
static double guess_for(const stand *p, weir_answer *a, uint32_t most)
{
    rt_guess *g = &a->guess;
    weir_session *s = a->session;
    weir_speculate mode = a->options.speculate;
    uint32_t length = 0;
    choice best = {.rate = 0};
    if (mode != WEIR_SPECULATE_DRAFT)
        g->n = rt_lookup(&s->index, s->tokens, s->n_tokens, most, g->token, &length);
    if (g->n != 0) {
        g->looked = g->token[0];
        g->found = g->length = length;
        const offer o = {.guessing = &s->guessing, .length = length, .most = g->n};
        if (mode == WEIR_SPECULATE_LOOKUP)
            best.n = g->n;
        else
            best = best_of(p, &o);
    }
    if (mode != WEIR_SPECULATE_LOOKUP) {
        choice drafted = best;
        uint32_t wanted = draft_count(p, a, most, &drafted);
        if (wanted != 0 && ask_draft(a, wanted)) {
            best = drafted;
            best.n = g->n;
        }
    }
    g->n_rows = best.n;
    return best.more;
}

/* Guesses that are of use: an answer ends at its length. They take the room of the caches that plain decoding
 * needs at this place, and never make them grow, for which there may be no memory. */
static uint32_t most_guesses(const weir_answer *a)
{
    const weir_session *s = a->session;
    uint64_t positions = base_max(lm_kv_positions(s->kv), lm_kv_room(&s->model->run->plan.kv, s->n_tokens));
    uint64_t most = a->options.speculate_tokens;
    most = base_min(most, a->max_tokens - a->n_tokens - 1);
    most = base_min(most, positions - s->n_tokens);
    return (uint32_t)base_min(most, RT_GUESSES_MAX);
}

/* A pass without guesses says what one costs: the first, and from time to time one more, since what plain
 * decoding takes is nowhere else to be seen while all passes guess. Not where other answers guess anyway. */
static bool is_plain_due(const rt_costs *c, const rt_share *shares, size_t n)
{
    if (rt_costs_of(c, (uint32_t)n) == 0) return true;
    for (size_t i = 0; i < n; i++) {
        weir_speculate mode = shares[i].answer->options.speculate;
        if (mode != WEIR_SPECULATE_AUTO && mode != WEIR_SPECULATE_OFF) return false;
    }
    return rt_costs_doubtful(c, (uint32_t)n);
}

void rt_speculate(rt_loaded *run, rt_share *shares, size_t n, uint32_t rows_left, uint32_t outputs_left)
{
    run->costs.row_guess = run->plan.view.streamed_bytes_per_pass != 0 ? ROW_STREAMED : ROW_RESIDENT;
    stand p = {.costs = &run->costs,
               .rows = (uint32_t)n,
               .tokens = (double)n,
               .token_seconds = rt_costs_of(&run->costs, (uint32_t)n) / (double)n};
    uint32_t room = (uint32_t)base_min(rows_left, outputs_left);
    bool plain = is_plain_due(&run->costs, shares, n);
    for (size_t i = 0; i < n; i++) {
        weir_answer *a = shares[i].answer;
        weir_session *s = a->session;
        if (a->options.speculate == WEIR_SPECULATE_OFF || a->max_tokens <= a->n_tokens) continue;
        if (a->options.speculate == WEIR_SPECULATE_AUTO && plain) continue;
        p.tokens += guess_for(&p, a, (uint32_t)base_min(most_guesses(a), room / (n - i)));
        uint32_t more = a->guess.n_rows;
        memcpy(s->tokens + s->n_tokens, a->guess.token, more * sizeof *s->tokens);
        shares[i].n_rows += more;
        shares[i].n_outputs += more;
        p.rows += more;
        room -= more;
    }
}
