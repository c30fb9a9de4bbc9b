#include "chat_session.h"

#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <memory>
#include <span>
#include <string>

#include "grace/base/check.h"
#include "grace/runtime/agreement.h"
#include "grace/runtime/conversation.h"
#include "memory.h"
#include "options.h"
#include "output.h"

namespace grace::app {
namespace {

// So often those that wait for the next message hear that there is none yet; they wait minutes at most.
constexpr std::chrono::milliseconds kPatience = std::chrono::seconds(10);
// What memory is looked at for; a conversation may grow beyond it.
constexpr std::int64_t kUsualTokens = 4096;
constexpr const char* kNew = "/new";
constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

enum class Heard : std::uint8_t { kNothing, kLine, kEnd };

// The standard input line by line.
class Lines {
 public:
  // Waits for a line for kPatience at most.
  Heard next(std::string& line) {
    for (;;) {
      if (take(line)) return Heard::kLine;
      if (is_over_) return Heard::kEnd;
      pollfd input{STDIN_FILENO, POLLIN, 0};
      if (poll(&input, 1, static_cast<int>(kPatience.count())) <= 0) return Heard::kNothing;
      char bytes[4096];
      const ssize_t count = read(STDIN_FILENO, bytes, sizeof bytes);
      if (count > 0) kept_.append(bytes, static_cast<std::size_t>(count));
      is_over_ = count == 0 || (count < 0 && errno != EINTR);
    }
  }

 private:
  bool take(std::string& line) {
    const std::size_t end = kept_.find('\n');
    if (end == std::string::npos && (!is_over_ || kept_.empty())) return false;
    line = kept_.substr(0, end);
    kept_.erase(0, end == std::string::npos ? end : end + 1);
    if (line.ends_with('\r')) line.pop_back();
    return true;
  }

  std::string kept_;
  bool is_over_ = false;
};

// Writes a reply as it grows.
class Reply {
 public:
  explicit Reply(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {}
  void grow(std::span<const std::int32_t> ids) {
    const Result<std::string> text = tokenizer_.decode(ids, true);
    GRACE_CHECK(text.ok(), "what the model chose is in its vocabulary");
    text_ = text.value();
    // A letter may take several tokens, and stands for nothing until its last.
    std::string_view whole = text_;
    while (whole.ends_with(kReplacement)) whole.remove_suffix(kReplacement.size());
    write_to(whole.size());
  }
  std::string end() {
    write_to(text_.size());
    print("\n");
    std::fflush(stdout);
    return text_;
  }

 private:
  void write_to(std::size_t size) {
    if (size <= written_) return;
    print(text_.substr(written_, size - written_));
    std::fflush(stdout);
    written_ = size;
  }

  const Tokenizer& tokenizer_;
  std::string text_;
  std::size_t written_ = 0;
};

// The rank that reads and writes.
class Speaker {
 public:
  static Result<Speaker> make(const Job& job, const ChatFlags& flags) {
    return Speaker(GRACE_TRY(ChatPrompts::load(flags, job.model)),
                   GRACE_TRY(load_tokenizer(job.model.string())));
  }

  // What is asked next, a line that says something.
  Heard listen() {
    if (!asked_) ask();
    std::string line;
    const Heard heard = lines_.next(line);
    if (heard != Heard::kLine) return heard;
    asked_ = false;
    if (line == kNew) messages_ = prompts_.opening();
    if (line.empty() || line == kNew) return Heard::kNothing;
    messages_.push_back({{"role", "user"}, {"content", line}});
    return heard;
  }
  Result<std::vector<std::int32_t>> conversation() const {
    return tokenizer_.encode(GRACE_TRY(prompts_.text_of(messages_)));
  }
  Reply begin_reply() const { return Reply(tokenizer_); }
  void replied(const std::string& text) { messages_.push_back({{"role", "assistant"}, {"content", text}}); }

 private:
  Speaker(ChatPrompts prompts, Tokenizer tokenizer)
      : prompts_(std::move(prompts)), tokenizer_(std::move(tokenizer)), messages_(prompts_.opening()) {
    if (is_terminal_)
      fmt::print(stderr, "A line is a message; {} begins a new conversation, Ctrl-D ends.\n", kNew);
  }
  void ask() {
    if (is_terminal_) fmt::print(stderr, "> ");
    asked_ = true;
  }

  ChatPrompts prompts_;
  Tokenizer tokenizer_;
  Json messages_;
  Lines lines_;
  bool is_terminal_ = isatty(STDIN_FILENO) != 0;
  bool asked_ = false;
};

// What the first rank heard, on every rank.
Result<Heard> hear_together(Transport& transport, Speaker* speaker) {
  const std::byte mine{static_cast<std::uint8_t>(speaker == nullptr ? Heard::kNothing : speaker->listen())};
  const auto all = GRACE_TRY(transport.all_gather({&mine, 1}));
  return all.front().empty() ? Heard::kEnd : static_cast<Heard>(all.front()[0]);
}

// Collective; one rank has a speaker.
Status answer(Conversation& conversation, Transport& transport, Speaker* speaker) {
  std::vector<std::int32_t> ids;
  Status prepared;
  if (speaker != nullptr) {
    auto made = speaker->conversation();
    if (made.ok())
      ids = std::move(made).value();
    else
      prepared = made.error();
  }
  GRACE_TRY(agree(transport, prepared));
  if (speaker == nullptr) {
    GRACE_TRY(conversation.reply({}, {}));
    return {};
  }
  Reply reply = speaker->begin_reply();
  GRACE_TRY(conversation.reply(ids, [&](std::span<const std::int32_t> so_far) {
    reply.grow(so_far);
    return true;
  }));
  speaker->replied(reply.end());
  return {};
}

}  // namespace

Status chat_in_turns(const Job& job, const ChatFlags& flags, const GenerateOptions& options,
                     const Context& context) {
  const std::int64_t cached = std::min<std::int64_t>(kUsualTokens, job.config.max_positions);
  GRACE_TRY(check_memory(job, job.plan, cached));
  say_memory(job, job.plan, cached);
  Speaker speaker = GRACE_TRY(Speaker::make(job, flags));
  Ranks ranks = GRACE_TRY(Ranks::make(job, context, true));
  return ranks.run([&](Transport& transport, ThreadPool& pool) -> Status {
    const auto engine =
        GRACE_TRY(Engine::make(job.model, job.plan, job.cluster, transport, pool, engine_options(job)));
    Conversation conversation(*engine, transport, options);
    Speaker* const mine = transport.rank() == 0 ? &speaker : nullptr;
    for (;;) {
      const Heard heard = GRACE_TRY(hear_together(transport, mine));
      if (heard == Heard::kEnd) return {};
      if (heard == Heard::kLine) GRACE_TRY(answer(conversation, transport, mine));
    }
  });
}

}  // namespace grace::app
