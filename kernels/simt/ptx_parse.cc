/* PTX text → kernels. */
#include <cctype>
#include <cstdlib>
#include <stdexcept>

#include "kernels/simt/ptx.h"

/* In the order of `special` in ptx.cc. */
static const char *const specials[] = {"%tid.x",    "%tid.y",    "%tid.z",  "%ctaid.x", "%ctaid.y",
                                       "%ctaid.z",  "%ntid.x",   "%ntid.y", "%ntid.z",  "%nctaid.x",
                                       "%nctaid.y", "%nctaid.z", "%laneid"};

static bool starts(const std::string &s, const char *with)
{
    return s.compare(0, strlen(with), with) == 0;
}

static bool is_name(char c)
{
    return isalnum((unsigned char)c) || c == '_' || c == '$' || c == '%' || c == '.';
}

struct failure {
    std::string text;
};

/* The text, and where it is read. */
struct reader {
    const char *at;
    int line = 1;

    void skip()
    {
        for (;; at++) {
            if (*at == '\n')
                line++;
            else if (at[0] == '/' && at[1] == '/')
                for (; at[1] && at[1] != '\n'; at++)
                    ;
            else if (!isspace((unsigned char)*at))
                return;
        }
    }
    /* What stands in front of the next of `ends`, which is passed; comments and line ends become spaces. */
    std::string until(const char *ends)
    {
        std::string out;
        for (; *at && !strchr(ends, *at); at++) {
            if (at[0] == '/' && at[1] == '/')
                for (; at[1] && at[1] != '\n'; at++)
                    ;
            else
                out += isspace((unsigned char)*at) ? ' ' : *at;
            line += *at == '\n';
        }
        line += *at == '\n';
        at += *at != 0;
        return out;
    }
    std::string word()
    {
        std::string out;
        skip();
        for (; is_name(*at) || (at[0] == ':' && at[1] == ':') || (at[0] == ':' && at[-1] == ':'); at++)
            out += *at;
        return out;
    }
};

static std::vector<std::string> words_of(const std::string &text)
{
    std::vector<std::string> out;
    std::string word;
    for (char c : text + " ") {
        if (c != ' ') {
            word += c;
        } else if (!word.empty()) {
            out.push_back(word);
            word.clear();
        }
    }
    return out;
}

/* "a, {b, c}, [d+4]" → its operands. */
static std::vector<std::string> operands_of(const std::string &text)
{
    std::vector<std::string> out;
    std::string operand;
    int depth = 0;
    for (char c : text + ",") {
        depth += c == '{' || c == '[';
        depth -= c == '}' || c == ']';
        if (c == ',' && depth == 0) {
            if (!operand.empty())
                out.push_back(operand);
            operand.clear();
        } else if (c != ' ') {
            operand += c;
        }
    }
    return out;
}

static size_t type_bytes(const std::string &type)
{
    return type == "pred" ? 1 : (size_t)atoi(type.c_str() + 1) / 8;
}

struct parser {
    reader in;
    std::string module;
    ptx_kernels *kernels;
    ptx_kernel *k = nullptr;
    std::unordered_map<std::string, int> registers, labels;
    std::unordered_map<std::string, uint64_t> symbols;
    std::map<uint64_t, int> constants;
    std::vector<std::pair<size_t, std::string>> branches; /* instruction and label */
    std::map<std::string, std::string> files;
    std::map<std::string, int> sources;
    int source = 0, depth = 0;
    std::string module_extern;

    int new_register(uint64_t value)
    {
        k->registers.push_back(value);
        return (int)k->registers.size() - 1;
    }
    int constant(uint64_t value)
    {
        auto found = constants.find(value);
        if (found == constants.end())
            found = constants.emplace(value, new_register(value)).first;
        return found->second;
    }
    int number(const std::string &s)
    {
        const char *p = s.c_str();
        if (starts(s, "0f") || starts(s, "0F") || starts(s, "0d") || starts(s, "0D"))
            return constant(strtoull(p + 2, nullptr, 16));
        char *end;
        uint64_t value = *p == '-' ? (uint64_t)strtoll(p, &end, 0) : strtoull(p, &end, 0);
        if (*end && *end != 'U')
            throw failure{"number " + s};
        return constant(value);
    }
    int special(const std::string &s)
    {
        for (int i = 0; i < (int)(sizeof specials / sizeof *specials); i++)
            if (s == specials[i]) {
                registers[s] = new_register(0);
                k->specials.push_back({registers[s], i});
                return registers[s];
            }
        throw failure{"'" + s + "' is not declared"};
    }
    int simple(const std::string &s)
    {
        auto reg = registers.find(s);
        if (reg != registers.end())
            return reg->second;
        auto symbol = symbols.find(s);
        if (symbol != symbols.end())
            return constant(symbol->second);
        if (isdigit((unsigned char)s[0]) || s[0] == '-')
            return number(s);
        return special(s);
    }

    /* "[%rd1+8]", or "[%rd1, {%r1, %r2}]" */
    void address(const std::string &s, ptx_ins *i, std::vector<int> *list)
    {
        for (const std::string &part : operands_of(s.substr(1, s.size() - 2))) {
            size_t plus = part.find('+');
            if (part[0] == '{' || plus == std::string::npos) {
                operand(part, i, list);
                continue;
            }
            list->push_back(simple(part.substr(0, plus)));
            if (i->offset)
                throw failure{"two addresses with offsets"};
            i->offset = strtoll(part.c_str() + plus + 1, nullptr, 0);
        }
    }
    void operand(const std::string &s, ptx_ins *i, std::vector<int> *list)
    {
        size_t bar = s.find('|');
        if (s[0] == '[') {
            address(s, i, list);
        } else if (s[0] == '{') {
            for (const std::string &element : operands_of(s.substr(1, s.size() - 2)))
                list->push_back(simple(element));
        } else if (bar != std::string::npos) {
            list->push_back(simple(s.substr(0, bar)));
            list->push_back(simple(s.substr(bar + 1)));
        } else if (s != "_") {
            list->push_back(simple(s));
        }
    }

    void instruction(std::string op)
    {
        ptx_ins i = {};
        i.guard = -1;
        i.line = in.line;
        i.source = source;
        if (op.empty() && *in.at == '@') {
            in.at++;
            i.unless = *in.at == '!';
            in.at += i.unless;
            i.guard = simple(in.word());
            op = in.word();
        }
        std::vector<std::string> operands = operands_of(in.until(";"));
        std::vector<int> list;
        if (starts(op, "mov.") && operands.at(0)[0] == '{')
            op = "{} " + op;
        else if (starts(op, "mov.") && operands.at(1)[0] == '{')
            op += " {}";
        if (starts(op, "bra")) {
            branches.push_back({k->code.size(), operands.at(0)});
            i.step = ptx_branch;
        } else {
            i.step = ptx_find_arithmetic(op);
            if (!i.step)
                i.step = ptx_find_memory(op, &i);
            if (!i.step)
                i.step = ptx_find_warp(op, &i);
            if (!i.step)
                throw failure{"instruction " + op + " is not known"};
            for (const std::string &s : operands) {
                if (s.find('|') != std::string::npos && !starts(op, "shfl."))
                    throw failure{op + " with two results"};
                operand(s, &i, &list);
            }
            if (op.find("{}") != std::string::npos && list.size() != 3)
                throw failure{op + " of " + std::to_string(list.size() - 1) + " parts"};
        }
        i.operands = (int)list.size();
        k->operands.insert(k->operands.end(), list.begin(), list.end());
        k->code.push_back(i);
    }

    /* ".reg .b32 %r<5>, p" */
    void registers_declare()
    {
        std::string text = in.until(";");
        size_t name = text.find_first_of("%abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_",
                                         text.find(' ', text.find('.')));
        for (const std::string &s : operands_of(text.substr(name))) {
            size_t open = s.find('<');
            if (open == std::string::npos)
                registers[s] = new_register(UINT64_MAX);
            for (int n = 0; open != std::string::npos && n < atoi(s.c_str() + open + 1); n++)
                registers[s.substr(0, open) + std::to_string(n)] = new_register(UINT64_MAX);
        }
    }

    /* ".shared .align 8 .b8 name[256]": name, bytes, alignment. */
    static ptx_piece variable(const std::string &text, size_t *alignment)
    {
        std::vector<std::string> words = words_of(text);
        std::string name = words.at(words.size() - 1);
        size_t open = name.find('['), bytes = type_bytes(words.at(words.size() - 2).substr(1));
        *alignment = bytes;
        for (size_t w = 0; w + 1 < words.size(); w++)
            if (words[w] == ".align")
                *alignment = (size_t)atoi(words[w + 1].c_str());
        if (open != std::string::npos) {
            bytes *= (size_t)atoi(name.c_str() + open + 1);
            name = name.substr(0, open);
        }
        return {name, 0, bytes};
    }
    void variable_declare(const std::string &space)
    {
        size_t alignment;
        ptx_piece v = variable(in.until(";"), &alignment);
        if (space == ".local") {
            k->local_bytes = (k->local_bytes + 15) / 16 * 16;
            symbols[v.name] = k->local_bytes;
            k->local_bytes += v.bytes;
        } else if (space == ".shared" && k && v.bytes <= PTX_STATIC_STEP) {
            symbols[v.name] = PTX_STATIC + k->statics.size() * PTX_STATIC_STEP;
            k->statics.push_back(v);
        } else {
            throw failure{space + " variable " + v.name};
        }
    }

    void entry()
    {
        std::string name = in.word();
        if (kernels->count(name))
            throw failure{"a second kernel " + name};
        k = &(*kernels)[name];
        k->name = name;
        k->sources.push_back(module);
        registers.clear();
        labels.clear();
        symbols.clear();
        constants.clear();
        branches.clear();
        sources.clear();
        source = 0;
        if (!module_extern.empty())
            symbols[module_extern] = 0;
        in.until("(");
        for (const std::string &text : operands_of_list(in.until(")"))) {
            size_t alignment;
            ptx_piece p = variable(text, &alignment);
            p.offset = (k->parameter_bytes + alignment - 1) / alignment * alignment;
            symbols[p.name] = p.offset;
            k->parameter_bytes = p.offset + p.bytes;
            k->parameters.push_back(p);
        }
        in.until("{");
        depth = 1;
    }
    static std::vector<std::string> operands_of_list(const std::string &text)
    {
        std::vector<std::string> out;
        size_t from = 0;
        while (text.find(".param", from) != std::string::npos) {
            size_t comma = text.find(',', from);
            out.push_back(text.substr(from, comma - from));
            from = comma == std::string::npos ? text.size() : comma + 1;
        }
        return out;
    }

    void kernel_end()
    {
        ptx_ins end = {}; /* of a text that does not return by itself */
        end.step = ptx_find_warp("ret", &end);
        end.guard = -1;
        k->code.push_back(end);
        for (const auto &b : branches) {
            auto found = labels.find(b.second);
            if (found == labels.end())
                throw failure{"label " + b.second};
            k->code[b.first].offset = found->second;
        }
        k->operands.resize(k->operands.size() + 4); /* an instruction may look at more than it has, and not use it */
        size_t first = 0;
        for (ptx_ins &i : k->code) {
            i.r = k->operands.data() + first;
            first += (size_t)i.operands;
        }
        k = nullptr;
    }

    /* ".loc 1 20 5, …" names a file by number; ".file 1 "path"" comes at the end of the text. */
    void location()
    {
        std::vector<std::string> words = words_of(in.until("\n"));
        std::string key = words.at(0) + ":" + words.at(1);
        auto found = sources.find(key);
        if (found == sources.end()) {
            k->sources.push_back(files[words[0]] + ":" + words[1]);
            found = sources.emplace(key, (int)k->sources.size() - 1).first;
        }
        source = found->second;
    }

    void directive(const std::string &word)
    {
        if (word == ".loc") {
            location();
        } else if (word == ".reg") {
            registers_declare();
        } else if (word == ".shared" || word == ".local") {
            variable_declare(word);
        } else if (word == ".extern") { /* shared memory of the launch */
            size_t alignment;
            ptx_piece v = variable(in.until(";"), &alignment);
            module_extern = v.name;
            if (v.bytes)
                throw failure{"extern " + v.name};
        } else if (word == ".entry") {
            entry();
        } else if (word == ".section") {
            in.until("}");
        } else if (word == ".pragma") {
            in.until(";");
        } else if (word == ".version" || word == ".target" || word == ".address_size" || word == ".file") {
            in.until("\n");
        } else if (word != ".visible" && word != ".weak") {
            throw failure{"directive " + word};
        }
    }

    void statement()
    {
        if (*in.at == '{' || *in.at == '}') {
            depth += *in.at++ == '{' ? 1 : -1;
            if (depth == 0)
                kernel_end();
            return;
        }
        if (*in.at == ';') {
            in.at++;
            return;
        }
        std::string word = in.word();
        if (*in.at == ':') {
            in.at++;
            if (!k || !labels.emplace(word, (int)k->code.size()).second)
                throw failure{"a second label " + word};
        } else if (word[0] == '.') {
            directive(word);
        } else if (k && (!word.empty() || *in.at == '@')) {
            instruction(word);
        } else {
            throw failure{"'" + std::string(in.at, strcspn(in.at, "\n")) + "'"};
        }
    }
};

/* Names of source files by number, without their folders. */
static std::map<std::string, std::string> files_of(const char *text)
{
    std::map<std::string, std::string> out;
    for (const char *at = strstr(text, ".file"); at; at = strstr(at + 5, ".file")) {
        char number[16], path[1024];
        if (sscanf(at, ".file %15s \"%1023[^\"]\"", number, path) == 2) {
            const char *slash = strrchr(path, '/');
            out[number] = slash ? slash + 1 : path;
        }
    }
    return out;
}

bool ptx_parse(const char *text, const char *name, ptx_kernels *kernels, std::string *why)
{
    parser p = {};
    p.in.at = text;
    p.module = name;
    p.kernels = kernels;
    p.files = files_of(text);
    try {
        for (p.in.skip(); *p.in.at; p.in.skip())
            p.statement();
        if (p.k)
            throw failure{"the text ends in a kernel"};
        return true;
    } catch (const failure &f) {
        *why = f.text;
    } catch (const std::out_of_range &) { /* of operands, words or characters */
        *why = "something is missing";
    }
    *why = std::string(name) + ", line " + std::to_string(p.in.line) + " of its PTX: " + *why;
    return false;
}
