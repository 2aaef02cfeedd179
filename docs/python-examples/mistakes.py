import perstack


def who_must_act(error: perstack.PerstackError) -> str:
    match error:
        case perstack.NotAgreed() | perstack.NeedsPerson():
            return "a person, who has to agree"
        case perstack.NotFound() | perstack.NotAllowed() | perstack.CannotServe() | perstack.UsageError():
            return "the caller"
        case perstack.DefinitionError():
            return f"the author of perstack.toml: {len(error.problems)} problems"
        case perstack.MissingCredential() | perstack.ProviderError():
            return f"who set up the model: {error.name}"
        case perstack.SkillError() | perstack.PluginError():
            return "the author of a tool"
        case perstack.Conflict() | perstack.Damaged() | perstack.StorageError() | perstack.DispatcherError():
            return "who runs the storage or the queue"
        case _:
            return "anybody"


try:
    perstack.run_sync("wirter", "A haiku")
except perstack.PerstackError as error:
    print(who_must_act(error), error, sep=": ")
