// Which trials there are, when, and what they show. Times are compared in rounds. In each, every variant that
// is left serves one call.
#include "online.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cinttypes>
#include <cstring>
#include <ctime>
#include <mutex>
#include <new>

#include "names.h"

namespace aot_tune {

namespace {

constexpr const char* kVariable = "AOT_TUNE_ONLINE";
constexpr uint32_t kMostKinds = 4096;
constexpr uint32_t kBuckets = 1024;
constexpr size_t kMostBytes = 4 << 20;  // of the file
constexpr int kPatience = 100;          // ms, when another process writes
constexpr int kRounds = 9;
constexpr double kGain = 0.99;
constexpr double kHopeless = 1.5;  // times the usual time, in two rounds
constexpr double kByteTime = 10;   // ns, to compare two results

// ---- The variable

// A number of percent, with % or without, and then a file after a colon.
struct Given {
  const char* const text = copied(secure_getenv(kVariable));
  double share = 0;
  const char* path = nullptr;
  bool bad = false;
  Given() noexcept {
    const char* at = text;
    if (*at == '\0') return;
    double unit = 0;  // of a digit after the point
    for (; (*at >= '0' && *at <= '9') || (*at == '.' && unit == 0); ++at) {
      if (*at == '.') {
        unit = 1;
      } else {
        share = unit == 0 ? 10 * share + (*at - '0') : share + (*at - '0') * (unit /= 10);
      }
    }
    bad = at - text <= (unit > 0 ? 1 : 0) || share > 100;
    share /= 100;
    at += *at == '%' ? 1 : 0;
    if (*at == ':' && at[1] != '\0' && !bad) {
      path = absolute_path(at + 1);
    } else {
      bad |= *at != '\0';
    }
  }
};

const Given& given() noexcept {
  static const Given known;
  return known;
}

// ---- Kinds of calls

struct Candidate {
  int16_t variant;
  bool compared;
  bool out;
  int32_t count;  // of its times
  double times[kRounds];
};

double median_of(const Candidate& candidate) noexcept {
  double sorted[kRounds];
  std::copy_n(candidate.times, candidate.count, sorted);
  const int32_t middle = candidate.count / 2;
  std::nth_element(sorted, sorted + middle, sorted + candidate.count);
  return candidate.count > 0 ? sorted[middle] : 0;
}

}  // namespace

struct Tried {
  const FactsInfo* info;
  const Backend* backend;
  int32_t device_id;
  int32_t count = 0;  // of the candidates
  bool decided = false;
  int16_t chosen = -1;
  Candidate* candidates = nullptr;
  int64_t bytes = 0;
  uint64_t calls = 0;
  uint64_t captured = 0;
  Tried* next = nullptr;  // in its bucket
  // Its words follow it.
  int64_t* words() noexcept { return reinterpret_cast<int64_t*>(this + 1); }
};

namespace {

// A trial on a device, whose time is not known yet.
struct Running {
  Tried* tried = nullptr;
  int candidate = 0;
  void* first = nullptr;
  void* last = nullptr;
};

// Of all kinds. It is guarded by `mutex`.
struct State {
  Tried* buckets[kBuckets];
  uint32_t kinds;
  int64_t since;  // from when on trials may take their share of the time
  bool busy;      // there is a trial
  Running running;
};

State state{};
std::mutex mutex;

void in_child() noexcept {
  state.busy = false;  // that thread is not here
  state.running = {};
  mutex.unlock();
}

// ---- The file

// What earlier processes chose.
struct Kept {
  char* path = nullptr;
  char* text = nullptr;
  size_t size = 0;
};

void tell_lost(const char* path, const char* why) noexcept {
  std::fprintf(stderr, "aot_tune: %s: %s: %s; choices are not kept\n", kVariable, path, why);
}

// A file of this library in the user's cache, for which folders are made. NULL without a home.
char* usual_path() noexcept {
  constexpr const char* kPlaces[][2] = {
      {"AOT_TUNE_CACHE_DIR", ""}, {"XDG_CACHE_HOME", "/aot_tune"}, {"HOME", "/.cache/aot_tune"}};
  char* path = nullptr;
  for (const auto& [variable, below] : kPlaces) {
    const char* const folder = secure_getenv(variable);
    if (folder == nullptr || *folder != '/') continue;
    if (asprintf(&path, "%s%s/online/%s.jsonl", folder, below, library_info.name) < 0) return nullptr;
    for (char* at = path + 1; (at = std::strchr(at, '/')) != nullptr; ++at) {
      *at = '\0';
      mkdir(path, 0700);  // if it fails, the file cannot be opened
      *at = '/';
    }
    return path;
  }
  return nullptr;
}

// Whether the file is nobody else's. It is made if it is not there.
bool is_own(const char* path, Text* why) noexcept {
  const int file = open(path, O_WRONLY | O_CREAT | O_CLOEXEC | O_NONBLOCK | O_NOCTTY, 0600);
  struct stat found{};
  // stat would ask for a recent glibc
  const bool good = file >= 0 && syscall(SYS_newfstatat, file, "", &found, AT_EMPTY_PATH) == 0;
  if (!good) why->add("it cannot be opened: %s", std::strerror(errno));
  if (file >= 0) close(file);
  if (!good) return false;
  if (found.st_uid != geteuid()) why->add("it belongs to another user");
  if ((found.st_mode & 022) != 0) why->add("others may write to it");
  return found.st_uid == geteuid() && (found.st_mode & 022) == 0;
}

Kept open_kept() noexcept {
  Kept kept;
  kept.path = given().path != nullptr ? strdup(given().path) : usual_path();
  char reason[200] = "";
  Text why(reason, sizeof reason);
  if (kept.path == nullptr) {
    tell_lost("its file", "no home folder is known");
  } else if (!is_own(kept.path, &why) ||
             (kept.text = read_file(kept.path, kMostBytes, &kept.size, &why)) == nullptr) {
    tell_lost(kept.path, reason);
    kept.path = nullptr;
  }
  return kept;
}

Kept& kept() noexcept {
  static Kept opened = open_kept();
  return opened;
}

constexpr char kCalls[] = ", \"calls\": ";  // after a problem

void write_device(FILE* out, const Backend& backend, int32_t device_id) noexcept {
  char name[128] = "";
  if (backend.model != nullptr) backend.model(device_id, name, sizeof name);
  for (char* at = name; *at != '\0'; ++at) {
    if (*at < ' ' || *at == '"' || *at == '\\') *at = ' ';
  }
  const int32_t processors = backend.processors != nullptr ? backend.processors(device_id) : 0;
  std::fprintf(out, ", \"online\": {\"device\": \"%s, %d processors\", \"variant\": \"", name,
               static_cast<int>(processors));
}

// The last choice of an earlier process of this very library, on such a device, or -1.
int16_t kept_choice(Tried* tried) noexcept {
  const Kept& all = kept();
  if (all.size == 0) return -1;
  const Written begin([=](FILE* out) noexcept {
    write_problem(out, *tried->info, tried->words());
    std::fputs(kCalls, out);
  });
  const Written device([=](FILE* out) noexcept { write_device(out, *tried->backend, tried->device_id); });
  if (!begin.complete || !device.complete) return -1;
  int16_t choice = -1;
  bool ours = false;
  for (const char *line = all.text, *const end = line + all.size; line < end;) {
    const auto* stop = static_cast<const char*>(std::memchr(line, '\n', static_cast<size_t>(end - line)));
    if (stop == nullptr) break;
    const auto size = static_cast<size_t>(stop - line);
    if (is_header(line, size))
      ours = memmem(line, size, library_info.traced, std::strlen(library_info.traced)) != nullptr;
    const bool such = ours && size > begin.size && std::memcmp(line, begin.text, begin.size) == 0;
    const void* const at = such ? memmem(line, size, device.text, device.size) : nullptr;
    if (at != nullptr) {
      const char* const name = static_cast<const char*>(at) + device.size;
      const Part variant = {name, std::strcspn(name, "\"\n")};
      for (int16_t i = 0; i < tried->info->variant_count; ++i) {
        if (variant.is(tried->info->variants[i].name)) choice = i;
      }
    }
    line = stop + 1;
  }
  return choice;
}

void keep(Tried* tried) noexcept {
  static off_t end = -1;
  if (kept().path == nullptr) return;
  char reason[160] = "";
  Text why(reason, sizeof reason);
  const Written header([](FILE* out) noexcept { write_header(out, getpid(), time(nullptr)); });
  const Written line([=](FILE* out) noexcept {
    const VariantInfo* const variants = tried->info->variants;
    write_problem(out, *tried->info, tried->words());
    std::fprintf(out, "%s%" PRIu64 ", \"captured\": %" PRIu64, kCalls, tried->calls, tried->captured);
    write_device(out, *tried->backend, tried->device_id);
    std::fprintf(out, "%s\"", variants[tried->chosen].name);
    for (int32_t i = 0; i < tried->count; ++i) {
      const Candidate& candidate = tried->candidates[i];
      if (candidate.count > 0)
        std::fprintf(out, "%s\"%s\": %.0f", i == 0 ? ", \"ns\": {" : ", ", variants[candidate.variant].name,
                     median_of(candidate));
    }
    std::fprintf(out, "}}}\n");
  });
  const bool complete = header.complete && line.complete;
  if (complete &&
      append_lines(kept().path, header.lines(), line.lines(), kPatience, &end, &why) != Appended::kFailed)
    return;
  tell_lost(kept().path, complete ? reason : "there is no memory for its lines");
  kept().path = nullptr;
}

// ---- Trials

// Puts off the next trials until the cost is within their share of the time.
void pay(double cost) noexcept {
  if (cost > 0) state.since += static_cast<int64_t>(cost / given().share);
}

void add_time(Tried* tried, int index, double time) noexcept {
  Candidate& candidate = tried->candidates[index];
  const double usual = median_of(tried->candidates[0]);
  candidate.times[candidate.count++] = time;
  const double least = *std::min_element(candidate.times, candidate.times + candidate.count);
  if (index > 0) pay(time - usual);
  if (index > 0 && least > usual * (candidate.count == 1 ? 2 * kHopeless : kHopeless)) candidate.out = true;
}

// Such calls stay as they are, and nothing is kept.
void give_up(Tried* tried) noexcept { tried->decided = true; }

void drop(Tried* tried, int index) noexcept {
  tried->candidates[index].out = true;
  if (index == 0) give_up(tried);
}

// Whether no trial is running. The time of one on a device may be known by now.
bool is_free() noexcept {
  Running& running = state.running;
  if (!state.busy || running.tried == nullptr) return !state.busy;
  int64_t time = 0;
  const int32_t status = running.tried->backend->between(running.first, running.last, &time);
  if (status == kUnfinished) return false;
  if (status == 0) {
    add_time(running.tried, running.candidate, static_cast<double>(time));
  } else {
    give_up(running.tried);
  }
  running = {};
  state.busy = false;
  return true;
}

// The next candidate of the round, or -1 after the last round, or if only the usual one is left.
int next_candidate(const Tried& tried) noexcept {
  int next = 0, left = 0;
  for (int i = 0; i < tried.count; ++i) {
    const Candidate& candidate = tried.candidates[i];
    left += candidate.out ? 0 : 1;
    if (!candidate.out && candidate.count < tried.candidates[next].count) next = i;
  }
  return left > 1 && tried.candidates[next].count < kRounds ? next : -1;
}

// Whether most of a candidate's times are below most of the others.
bool is_faster(const Candidate& one, const Candidate& other) noexcept {
  int faster = 0;
  for (const double time : one.times) {
    for (const double beside : other.times) faster += time < kGain * beside ? 1 : 0;
  }
  return faster * 6 > kRounds * kRounds * 5;
}

void decide(Tried* tried) noexcept {
  tried->decided = true;
  int best = 0;
  for (int i = 1; i < tried->count; ++i) {
    const Candidate& candidate = tried->candidates[i];
    if (candidate.out || !is_faster(candidate, tried->candidates[0])) continue;
    if (best == 0 || median_of(candidate) < median_of(tried->candidates[best])) best = i;
  }
  tried->chosen = tried->candidates[best].variant;
  keep(tried);
}

// The extra time that a trial may take.
double cost_of(const Tried& tried, int index) noexcept {
  const Candidate& candidate = tried.candidates[index];
  const double usual = median_of(tried.candidates[0]);
  if (index == 0) return 0;
  if (!candidate.compared) return usual + kByteTime * static_cast<double>(tried.bytes);
  return candidate.count == 0 ? usual : std::max(0.0, median_of(candidate) - usual);
}

}  // namespace

bool bad_online() noexcept { return given().bad; }

int32_t check_online(const OperatorInfo& op) noexcept {
  if (!bad_online()) return AOT_TUNE_OK;
  return fail(
      AOT_TUNE_ERROR_ENVIRONMENT,
      "%s: %s is '%.60s', which is no share of time; wanted percent from 0 to 100, such as 1 or 0.5%%, "
      "alone or with a file as in 1%%:choices.jsonl, or nothing",
      op.name, kVariable, given().text);
}

Switch trying([]() noexcept {
  static const bool wanted = [] {
    const bool good = *given().text != '\0' && !given().bad;
    state.since = monotonic();
    if (good) pthread_atfork([] { mutex.lock(); }, [] { mutex.unlock(); }, in_child);
    return good;
  }();
  return wanted;
});

Tried* find_tried(const FactsInfo& info, const Backend& backend, int32_t device_id, int64_t* words) noexcept {
  make_coarse(info, words);
  const size_t size = call_words(info), bytes = size * sizeof *words;
  const std::lock_guard<std::mutex> locked(mutex);
  Tried*& bucket = state.buckets[hash_of(info, words, size) % kBuckets];
  for (Tried* tried = bucket; tried != nullptr; tried = tried->next) {
    if (tried->info == &info && tried->backend == &backend && tried->device_id == device_id &&
        std::memcmp(tried->words(), words, bytes) == 0)
      return tried;
  }
  void* const memory = state.kinds < kMostKinds ? std::malloc(sizeof(Tried) + bytes) : nullptr;
  if (memory == nullptr) return nullptr;
  auto* const made = new (memory) Tried{&info, &backend, device_id};
  made->next = bucket;
  std::memcpy(made->words(), words, bytes);
  made->chosen = kept_choice(made);
  made->decided = made->chosen >= 0;
  ++state.kinds;
  return bucket = made;
}

int16_t chosen_of(const Tried* tried) noexcept {
  const std::lock_guard<std::mutex> locked(mutex);
  return tried != nullptr ? tried->chosen : int16_t{-1};
}

bool lacks_candidates(const Tried* tried) noexcept {
  const std::lock_guard<std::mutex> locked(mutex);
  return !tried->decided && tried->count == 0;
}

void list_candidates(Tried* tried, const int16_t* variants, int32_t count, int64_t bytes) noexcept {
  const std::lock_guard<std::mutex> locked(mutex);
  if (tried->count > 0) return;  // another thread did
  const bool measurable = tried->backend->copy == nullptr || tried->backend->mark != nullptr;
  auto* const candidates =
      static_cast<Candidate*>(std::calloc(static_cast<size_t>(count), sizeof(Candidate)));
  if (count < 2 || given().share == 0 || !measurable || candidates == nullptr) {
    std::free(candidates);
    return give_up(tried);
  }
  for (int32_t i = 0; i < count; ++i) candidates[i].variant = variants[i];
  candidates[0].compared = true;
  tried->candidates = candidates;
  tried->count = count;
  tried->bytes = bytes;
}

Trial next_trial(Tried* tried, bool captured) noexcept {
  Trial trial;
  const std::lock_guard<std::mutex> locked(mutex);
  ++tried->calls;
  tried->captured += captured ? 1 : 0;
  trial.settled = tried->decided;
  if (tried->decided || captured || !is_free()) return trial;
  const int index = next_candidate(*tried);
  if (index < 0) {
    decide(tried);
    return trial;
  }
  const double earned = given().share * static_cast<double>(monotonic() - state.since);
  if (cost_of(*tried, index) > earned && index > 0) return trial;
  state.busy = true;
  trial.what = tried->candidates[index].compared ? Trial::kTime : Trial::kCompare;
  trial.candidate = index;
  trial.variant = tried->candidates[index].variant;
  return trial;
}

void begin_trial(const Tried* tried, Trial* trial, void* stream) noexcept {
  if (trial->what == Trial::kTime && tried->backend->mark != nullptr)
    tried->backend->mark(stream, &trial->mark);
  trial->begun = monotonic();
}

void end_trial(Tried* tried, const Trial& trial, Outcome outcome, void* stream) noexcept {
  const auto time = static_cast<double>(monotonic() - trial.begun);
  const Backend& backend = *tried->backend;
  const bool timed = trial.what == Trial::kTime;
  Running running = {tried, trial.candidate, trial.mark, nullptr};
  if (trial.mark != nullptr && backend.mark(stream, &running.last) != 0) outcome = Outcome::kUnsure;
  const std::lock_guard<std::mutex> locked(mutex);
  if (trial.mark != nullptr && outcome == Outcome::kGood) {
    state.running = running;
    return;
  }
  int64_t ignored;
  if (trial.mark != nullptr) backend.between(running.first, running.last, &ignored);
  if (timed && backend.mark != nullptr && outcome == Outcome::kGood) outcome = Outcome::kUnsure;
  if (!timed && outcome != Outcome::kNotRun) pay(time - median_of(tried->candidates[0]));
  tried->candidates[trial.candidate].compared |= outcome == Outcome::kGood;
  if (outcome == Outcome::kUnsure) give_up(tried);
  if (outcome == Outcome::kBad) drop(tried, trial.candidate);
  if (outcome == Outcome::kGood && timed) add_time(tried, trial.candidate, time);
  state.busy = false;
}

}  // namespace aot_tune
